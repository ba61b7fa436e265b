// The page's only way to write: text goes in as text, never as markup.

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

// Written again only when it says something else: what a reader has selected stays selected.
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

// Pairs of a term and what is said of it; a hash is set in type that can be compared by eye.
export const facts = (id, pairs) => {
  const told = pairs.filter((pair) => pair !== null);
  write(id, told, () => told.flatMap(([term, text, hash]) => [
    make("dt", {}, term),
    hash ? make("dd", {}, make("code", { class: "hash" }, text)) : make("dd", {}, text),
  ]));
};

// A table, and with it the fold that it stands in; neither is shown without rows.
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

// A line for a terminal, with a button that copies it.
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
      say(button, "Select it");  // not allowed here: the reader copies by hand
    }
    setTimeout(() => say(button, "Copy"), 1500);
  });
  code.after(button);
};
