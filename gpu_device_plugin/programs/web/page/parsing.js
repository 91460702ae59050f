/** Parses the events of the cluster, which have megabytes of JSON, in pieces between which the page answers. */

const PIECE = 1 << 18; // characters: some milliseconds of parsing
const BEGINNING = /^\{(?:"version":\d+,)?"nodes":\[(?=\{"name":)/;
// Within a text every quotation mark has a backslash before it, so this stands between two nodes, or is no JSON at all.
const BETWEEN = '},{"name":';

/** Returns what `JSON.parse(text)` does. Its nodes are parsed piece by piece where there are many of them. */
export async function parsed(text, piece = PIECE) {
  const head = text.length > piece ? BEGINNING.exec(text)?.[0] : undefined;
  if (head === undefined) return JSON.parse(text);
  try {
    const nodes = [];
    let start = head.length;
    for (let cut; (cut = text.indexOf(BETWEEN, start + piece)) >= 0; start = cut + 2) {
      nodes.push(...JSON.parse(`[${text.slice(start, cut + 1)}]`));
      await rest();
    }
    const document = JSON.parse(head + text.slice(start));
    document.nodes = [...nodes, ...document.nodes];
    return document;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return JSON.parse(text); // it is written in another way, or has a fault that this tells
  }
}

/** Lets other tasks run. Not by a timer: these come once a second only in a tab that is not seen. */
function rest() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
