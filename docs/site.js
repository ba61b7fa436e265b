// What is wider than the screen scrolls. Let a keyboard reach it.
function letKeyboardScroll() {
  for (const one of document.querySelectorAll(".md-typeset__scrollwrap, .formula, .diagram")) {
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
    else one.removeAttribute("tabindex");
  }
}

addEventListener("load", letKeyboardScroll);
addEventListener("resize", letKeyboardScroll);
