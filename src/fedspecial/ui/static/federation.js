// A federation: sites, rounds, refusals, decisions, audit chain.
import { shortNumber } from "./chart.js";
import { Table, h, setClass, setText } from "./dom.js";
import { Scale, whole } from "./format.js";
import { Problems, StateBadge, Tiles, card, link } from "./parts.js";

const NOT_RECORDED = "not recorded";
const OUTCOMES = { completed: "good", skipped: "warn", failed: "bad" };
const SITES = { "taking part": "good", "left the federation": "open", "not asked yet": "open", refused: "bad", "no usable reply": "warn" };

export class FederationPage {
  constructor([run]) {
    this.title = "Federation";
    this.view = "federation";
    this.run = run;
    this.parts = {};
    this.name = h("span", {}, run ?? "Federation");
    this.state = new StateBadge();
    this.what = h("p", { class: "soft" }, "reading the folder …");
    this.others = h("p", { class: "others" });
    this.problems = new Problems();
    this.chainState = h("span", { class: "state open" }, "…");
    this.chainText = h("p", { class: "soft" });
    this.chainList = h("ul");
    this.tiles = new Tiles({ sites: "Sites", rounds: "Rounds recorded", refusals: "Replies refused", starts: "Starts of the server" });
    this.sites = new Table([["Site"], ["State", "word"], ["Late by"], ["Asked"], ["Used"], ["Refused"], ["Last reason", "text"]], "No site has been named yet.");
    this.rounds = new Table([["Time", "word"], ["Task"], ["Round"], ["Attempt"], ["Usable replies"], ["Quorum"], ["Outcome", "word"], ["Drift"]], "No round yet.");
    this.refusals = new Table([["Time", "word"], ["Task"], ["Round"], ["Site", "word"], ["Reason", "text"]], "No reply was refused.");
    this.decisions = h("div");
    this.privacy = new Table([["Privacy budget"], ["Value", "text"]], NOT_RECORDED);
    this.empty = h("p", { class: "empty", hidden: true }, "There is no federation in this folder: no run has an audit log (audit.jsonl). See the guide “Deploy on Flower”, or try fedspecial flower demo.");
    this.content = h(
      "div",
      { hidden: true },
      this.tiles.element,
      this.problems.element,
      h(
        "div",
        { class: "cards" },
        card(["Audit chain ", this.chainState], [this.chainText, this.chainList]),
        card("Privacy budget", this.privacy.element),
        card("Sites", this.sites.element, { wide: true, note: "Late by: rounds in which the site was asked since its last usable reply." }),
        card("Promotion gate", this.decisions, { wide: true, note: "A model is published only if the accuracy on earlier domains has not dropped too much." }),
        card("Rounds", this.rounds.element, { wide: true, note: "The last 200 attempts, newest first. Quorum: how many usable replies the round needed." }),
        card("Refusals", this.refusals.element, { wide: true, note: "The last 100, newest first." }),
      ),
    );
    this.element = h("div", {}, h("div", { class: "title" }, h("h1", {}, this.name, " ", this.state.element), this.what, this.others), this.empty, this.content);
  }

  update(parts) {
    this.parts = { ...this.parts, ...parts };
    const { row, federations } = this.parts;
    this.empty.hidden = Boolean(row) || federations.length > 0;
    this.content.hidden = !row;
    if (!row) return setText(this.what, "");
    setText(this.name, row.run);
    this.state.update(row.state, row.reason);
    setText(this.what, `${row.method} on ${row.benchmark}${this.parts.counts.read < 1 ? `; reading the audit log: ${Math.round(100 * this.parts.counts.read)} %` : ""}`);
    if (parts.federations) this.showOthers(federations, row.run);
    if (parts.problems) this.problems.update(parts.problems);
    if ("chain" in parts) this.showChain(parts.chain);
    const { counts, sites } = this.parts;
    this.tiles.update({ sites: whole(sites.length), rounds: whole(counts.rounds), refusals: whole(counts.refusals), starts: whole(counts.starts.length) });
    if (parts.sites) this.showSites(parts.sites);
    if (parts.rounds) this.showRounds(parts.rounds);
    if (parts.refusals) this.refusals.update(parts.refusals.map((one) => [one.time, text(one.task), one.round === null ? "between tasks" : number(one.round), one.site, one.reason]));
    if (parts.decisions) this.showDecisions(parts.decisions);
    this.privacy.update(Object.entries(this.parts.privacy ?? {}));
  }

  showOthers(federations, shown) {
    const others = federations.filter((name) => name !== shown);
    const run = h("a", { href: link("run", [shown]) }, "Curves of this run");
    this.others.replaceChildren(run, ...others.slice(0, 20).flatMap((name) => [" · ", h("a", { href: link("federation", [name]) }, name)]));
  }

  showChain(chain) {
    const kind = { verified: "finished", broken: "failed" }[chain?.state] ?? "stopped";
    setClass(this.chainState, `state ${kind}`);
    setText(this.chainState, chain?.state ?? "no log");
    setText(this.chainText, chain?.text ?? (chain ? `${whole(chain.lines)} lines; each contains the hash of the one before it; ${chain.signed}. Head: ${chain.head}. Compare it with the head in the model card: a log that was cut off at its end is consistent too.` : "There is no audit log."));
    this.chainList.replaceChildren(...[...(chain?.problems ?? []), ...(chain?.notes ?? [])].map((line) => h("li", {}, line)));
  }

  showSites(sites) {
    this.sites.update(
      sites.map((site) => [site.name, h("span", { class: SITES[site.state] }, site.state), site.requested ? (site.missed ? `${site.missed} rounds` : "0") : "–", whole(site.requested), whole(site.used), whole(site.refused), site.last_reason || "–"]),
    );
  }

  showRounds(rounds) {
    this.rounds.update(
      rounds.map((one) => [one.time, text(one.task), number(one.round), text(one.attempt), `${one.used} of ${one.requested}`, one.quorum == null ? NOT_RECORDED : text(one.quorum), h("span", { class: OUTCOMES[one.outcome] ?? "" }, one.outcome), shortNumber(one.drift)]),
    );
  }

  showDecisions(decisions) {
    const shown = decisions.map((one) => {
      const table = new Table([["Domain"], ["Status", "word"], ["Drop, points"], ["Reason", "text"]], "There was no earlier domain.");
      table.update(one.domains.map((domain) => [domain.domain, h("span", { class: { kept: "good", dropped: "bad" }[domain.status] ?? "warn" }, domain.status), new Scale().text(domain.drop), domain.reason]));
      const head = h("h3", {}, `Task ${text(one.task)} `, h("span", { class: `state ${one.publish ? "finished" : "failed"}` }, one.publish ? "published" : "not published"));
      return h("div", { class: "decision" }, head, h("p", {}, one.reason), table.element);
    });
    this.decisions.replaceChildren(...(shown.length ? shown : [h("p", { class: "soft" }, "No task is finished yet.")]));
  }
}

const text = (value) => (value === null || value === undefined ? "–" : String(value));
const number = (value) => (Number.isInteger(value) ? String(value + 1) : text(value)); // files count rounds from 0
