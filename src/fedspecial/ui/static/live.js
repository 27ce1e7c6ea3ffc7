// What the server sends: all parts of a view, then those that changed. A part that disappeared is null.

export class Live {
  constructor(onParts, onState) {
    this.onParts = onParts;
    this.onState = onState;
    this.source = null;
    this.address = null;
    document.addEventListener("visibilitychange", () => this.onVisibility());
  }

  open(view, runs) {
    const query = new URLSearchParams(runs.map((run) => ["run", run]));
    this.address = `live/${view}?${query}`;
    this.connect();
  }

  // A page in the background needs no news; this also frees its connection.
  onVisibility() {
    if (document.hidden) this.close();
    else if (this.address && !this.source) this.connect();
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  // For a page without news: without its address, it is not connected again when it becomes visible.
  stop(state = "", text = "") {
    this.close();
    this.address = null;
    this.onState(state, text);
  }

  connect() {
    this.close();
    const source = new EventSource(this.address);
    this.source = source;
    source.onmessage = (event) => {
      if (this.source !== source) return;
      this.onState("live");
      this.onParts(JSON.parse(event.data));
    };
    source.addEventListener("gone", (event) => {
      if (this.source === source) this.stop("gone", JSON.parse(event.data));
    });
    source.onerror = () => {
      if (this.source === source) this.onState("lost");
    };
  }
}
