// Functions that change the page. They insert text only as text, never as HTML.

export const byId = (id) => document.getElementById(id);

export const setText = (id, text) => {
  const place = typeof id === "string" ? byId(id) : id;
  if (place.textContent !== text) place.textContent = text;
};

export const show = (id, shown) => {
  byId(id).hidden = !shown;
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

// Replaces the content only if it has changed, so that a reader's selection is kept.
const known = new WeakMap();
const write = (id, value, nodes) => {
  const key = JSON.stringify(value);
  if (known.get(byId(id)) === key) return;
  known.set(byId(id), key);
  setChildren(id, nodes());
};

export const setList = (id, sentences) => {
  write(id, sentences, () => sentences.map((sentence) => element("li", {}, sentence)));
};

// pairs: [term, text, true if the text is a hash]. Hashes are shown in a monospaced font.
export const setTerms = (id, pairs) => {
  const present = pairs.filter((pair) => pair !== null);
  write(id, present, () => present.flatMap(([term, text, hash]) => [
    element("dt", {}, term),
    hash ? element("dd", {}, element("code", { class: "hash" }, text)) : element("dd", {}, text),
  ]));
};

// Fills a table. Without rows, the <details> element around it is hidden.
export const table = (id, heads, rows, caption) => {
  byId(id).parentElement.hidden = rows.length === 0;
  write(id, [heads, rows, caption], () => [tableOf(heads, rows, caption)]);
};

const tableOf = (heads, rows, caption) => {
  const cell = (tag, text, column) => {
    const attributes = { "data-label": heads[column].name };
    if (heads[column].number) attributes.class = "number";
    if (tag === "th") attributes.scope = "col";
    return element(tag, attributes, text);
  };
  return element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...heads.map((head, i) => cell("th", head.name, i)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, i) => cell("td", text, i))))),
  );
};

// Shows a terminal command with a button that copies it.
export const command = (id, text) => {
  const code = byId(id);
  setText(code, text);
  if (code.nextElementSibling !== null || !navigator.clipboard) return;
  const button = element("button", { type: "button", "aria-label": "Copy the command" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      setText(button, "Copied");
    } catch {
      setText(button, "Select it");  // the browser does not allow it, so the reader must copy by hand
    }
    setTimeout(() => setText(button, "Copy"), 1500);
  });
  code.after(button);
};
