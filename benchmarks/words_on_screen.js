// Return the words of the page's main part that are visible without scrolling, without those of programs and flow charts,
// for tests and benchmarks/lab.py.
() => {
  const words = [], walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const option = node.parentElement.closest("option"), parent = option?.closest("select") ?? node.parentElement;
    if (option && !option.selected) continue;
    if (parent.closest(".unseen, script, style, .code, .flow") || parent.getBoundingClientRect().width <= 1 || !parent.checkVisibility({ visibilityProperty: true })) continue;
    range.selectNode(node);
    const { top, bottom, left, right } = (option ? parent : range).getBoundingClientRect();
    if (bottom > 0 && top < innerHeight && right > 0 && left < innerWidth) words.push(...node.data.match(/[A-Za-z][A-Za-z'’.()_-]+/g) ?? []);
  }
  return words;
}
