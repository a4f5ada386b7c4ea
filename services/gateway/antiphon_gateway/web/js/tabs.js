// Tabs by mouse, arrow keys and address.

/** Makes the tab list work; the address's fragment names the open panel. */
export function setUpTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const open = (tab, focus) => {
    for (const other of tabs) {
      const selected = other === tab;
      other.setAttribute("aria-selected", String(selected));
      other.tabIndex = selected ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !selected;
    }
    if (focus) tab.focus();
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => open(tab, false));
    tab.addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      const target = { Home: 0, End: tabs.length - 1 }[key];
      if (step) open(tabs[(index + step + tabs.length) % tabs.length], true);
      else if (target !== undefined) open(tabs[target], true);
    });
  });
  const follow = () => {
    const wanted = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
    open(wanted ?? tabs[0], false);
  };
  window.addEventListener("hashchange", follow);
  follow();
}
