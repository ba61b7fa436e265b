// Functions that change the page. They insert text only as text, never as HTML.

export const at = (id) => document.getElementById(id);

export const say = (id, text) => {
  const place = typeof id === "string" ? at(id) : id;
  if (place.textContent !== text) place.textContent = text;
};

export const show = (id, shown) => {
  at(id).hidden = !shown;
};

export const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

export const fill = (id, nodes) => {
  at(id).replaceChildren(...nodes);
};

// Replaces the content only if it has changed, so that a reader's selection is kept.
const known = new WeakMap();
const write = (id, value, nodes) => {
  const key = JSON.stringify(value);
  if (known.get(at(id)) === key) return;
  known.set(at(id), key);
  fill(id, nodes());
};

export const items = (id, sentences) => {
  write(id, sentences, () => sentences.map((sentence) => make("li", {}, sentence)));
};

// pairs: [term, text, true if the text is a hash]. Hashes are shown in a monospaced font.
export const facts = (id, pairs) => {
  const told = pairs.filter((pair) => pair !== null);
  write(id, told, () => told.flatMap(([term, text, hash]) => [
    make("dt", {}, term),
    hash ? make("dd", {}, make("code", { class: "hash" }, text)) : make("dd", {}, text),
  ]));
};

// Fills a table. Without rows, the <details> element around it is hidden.
export const table = (id, heads, rows, caption) => {
  at(id).parentElement.hidden = rows.length === 0;
  write(id, [heads, rows, caption], () => [tableOf(heads, rows, caption)]);
};

const tableOf = (heads, rows, caption) => {
  const cell = (tag, text, column) => {
    const attributes = { "data-label": heads[column].name };
    if (heads[column].number) attributes.class = "number";
    if (tag === "th") attributes.scope = "col";
    return make(tag, attributes, text);
  };
  return make("table", {},
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...heads.map((head, i) => cell("th", head.name, i)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text, i) => cell("td", text, i))))),
  );
};

// Shows a terminal command with a button that copies it.
export const command = (id, text) => {
  const code = at(id);
  say(code, text);
  if (code.nextElementSibling !== null || !navigator.clipboard) return;
  const button = make("button", { type: "button", "aria-label": "Copy the command" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      say(button, "Copied");
    } catch {
      say(button, "Select it");  // the browser does not allow it, so the reader must copy by hand
    }
    setTimeout(() => say(button, "Copy"), 1500);
  });
  code.after(button);
};
