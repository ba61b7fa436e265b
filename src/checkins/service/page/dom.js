// Functions that change the elements of the page. Text is inserted as text, never as HTML.

export const byId = (id) => document.getElementById(id);

export const setText = (id, text) => {
  const node = typeof id === "string" ? byId(id) : id;
  if (node.textContent !== text) node.textContent = text;
};

export const show = (id, visible) => {
  byId(id).hidden = !visible;
};

export const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

export const setChildren = (id, nodes) => {
  byId(id).replaceChildren(...nodes);
};

// Replaces the content of an element only if value has changed, so that a reader's selection is kept.
// nodes() returns the new content.
const lastValues = new WeakMap();
const replaceIfChanged = (id, value, nodes) => {
  const key = JSON.stringify(value);
  if (lastValues.get(byId(id)) === key) return;
  lastValues.set(byId(id), key);
  setChildren(id, nodes());
};

export const setList = (id, sentences) => {
  replaceIfChanged(id, sentences, () => sentences.map((sentence) => element("li", {}, sentence)));
};

// Fills a <dl> element. pairs: [term, text, isHash], or null to leave out a pair. A hash is shown in a
// monospaced font.
export const setTerms = (id, pairs) => {
  const shownPairs = pairs.filter((pair) => pair !== null);
  replaceIfChanged(id, shownPairs, () => shownPairs.flatMap(([term, text, isHash]) => [
    element("dt", {}, term),
    isHash ? element("dd", {}, element("code", { class: "hash" }, text)) : element("dd", {}, text),
  ]));
};

// Fills a table. columns: [{ name, number: true to align right }]. Without rows, the <details> element
// around the table is hidden.
export const setTable = (id, columns, rows, caption) => {
  byId(id).parentElement.hidden = rows.length === 0;
  replaceIfChanged(id, [columns, rows, caption], () => [tableOf(columns, rows, caption)]);
};

const tableOf = (columns, rows, caption) => {
  const cell = (tag, text, index) => {
    const attributes = { "data-label": columns[index].name };
    if (columns[index].number) attributes.class = "number";
    if (tag === "th") attributes.scope = "col";
    return element(tag, attributes, text);
  };
  return element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...columns.map((column, i) => cell("th", column.name, i)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, i) => cell("td", text, i))))),
  );
};

// Shows a terminal command with a button that copies it.
export const setCommand = (id, text) => {
  const code = byId(id);
  if (code.textContent !== text) {  // each argument is an element, so that no line breaks inside it
    code.replaceChildren(...text.split(" ").flatMap((word, i) => [...(i > 0 ? [" "] : []), element("span", {}, word)]));
  }
  if (code.nextElementSibling !== null || !navigator.clipboard) return;
  const button = element("button", { type: "button", "aria-label": "Copy the command" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      setText(button, "Copied");
    } catch {
      setText(button, "Select it");  // the browser does not allow copying, so the reader must select the text
    }
    setTimeout(() => setText(button, "Copy"), 1500);
  });
  code.after(button);
};
