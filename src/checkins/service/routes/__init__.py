"""HTTP routes. They parse requests and send responses; the state machines make the decisions."""
