// A page opened from a disk may start no worker. There, a hidden frame is one: the search of the site then needs no server.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (src) =>
        new Promise((done, failed) => {
          const script = this.inside.document.createElement("script");
          Object.assign(script, { src, onload: done, onerror: failed });
          this.inside.document.body.append(script);
        });
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await load(each);
      };
      this.ready = load(new URL(url, location.href).href);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
