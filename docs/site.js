// What scrolls can be reached by the keyboard, also after the theme has looked at it; the search has a name.
window.addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  const reach = (part) => part.tabIndex < 0 && (part.tabIndex = 0);
  const watch = new MutationObserver((changes) => changes.forEach(({ target }) => reach(target)));
  for (const part of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap")) {
    reach(part);
    watch.observe(part, { attributeFilter: ["tabindex"] });
  }
});
