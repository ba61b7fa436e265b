"""Whom an attack looks for: canaries, the worlds they are put in, what is seen of them there."""
