// The theme searches in a worker, and a page that is opened as a file may start none. There the same
// script runs in a hidden frame instead; the theme knows such a worker by this name.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inner = frame.contentWindow;
      inner.document.open();
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((load) => frame.addEventListener("load", () => load(inner)));
      inner.document.write(`<script src="${new URL(url, location)}"></script>`);
      inner.document.close();
    }

    postMessage(data) {
      this.loaded.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
