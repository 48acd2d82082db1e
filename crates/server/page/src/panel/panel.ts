// The live panel: asks for /status every second while it can be seen, and draws the answer.

import { isAbort, ServerError, type Client } from "../api/client";
import type { ModelStatus, Status } from "../api/types";
import { byId, element } from "../dom";
import { duration } from "../format";
import { History } from "./history";
import { modelSections } from "./sections";

const INTERVAL_MS = 1000;

const STATES: Record<ModelStatus["state"], string> = { loaded: "loaded", loading: "loading", unloaded: "not loaded", failed: "failed to load" };

export class Panel {
  private readonly root = byId("panel");
  private readonly content = byId("panel-content");
  private readonly histories = new Map<string, History>();
  private timer = 0;
  private request: AbortController | null = null;
  private opened = false;

  /** `model` names the model to show; without it in the answer, the first loaded one is shown. */
  constructor(
    private readonly client: Client,
    private readonly model: () => string,
  ) {
    document.addEventListener("visibilitychange", () => this.restart());
  }

  get isOpen(): boolean {
    return this.opened;
  }

  setOpen(open: boolean): void {
    this.opened = open;
    this.root.hidden = !open;
    document.body.classList.toggle("with-panel", open);
    byId("toggle-panel").setAttribute("aria-pressed", String(open));
    this.restart();
  }

  private restart(): void {
    clearTimeout(this.timer);
    this.request?.abort();
    this.request = null;
    if (this.opened && document.visibilityState === "visible") void this.poll();
  }

  private async poll(): Promise<void> {
    const request = new AbortController();
    this.request = request;
    const begun = performance.now();
    try {
      const status = await this.client.status(request.signal);
      this.draw(status, (begun + performance.now()) / 2000);
    } catch (error) {
      if (isAbort(error)) return;
      this.drawFailure(error);
    }
    if (this.request !== request) return;
    this.timer = window.setTimeout(() => void this.poll(), Math.max(0, INTERVAL_MS - (performance.now() - begun)));
  }

  private draw(status: Status, now: number): void {
    const models = status.models ?? [];
    for (const model of models) {
      const history = this.histories.get(model.id) ?? new History();
      this.histories.set(model.id, history);
      history.add(model, now);
    }
    const shown = models.find(({ id }) => id === this.model()) ?? models.find(({ state }) => state === "loaded") ?? models[0];
    const parts: HTMLElement[] = [];
    if (shown) parts.push(this.head(shown), ...(shown.state === "loaded" ? modelSections(shown, this.histories.get(shown.id)!, now) : []));
    else parts.push(element("p", { class: "hint" }, "The server has no models."));
    const others = models.filter((model) => model !== shown);
    if (others.length > 0) parts.push(otherModels(others));
    parts.push(element("p", { class: "hint version" }, versionText(status)));
    this.content.replaceChildren(...parts);
  }

  private head(model: ModelStatus): HTMLElement {
    const context = typeof model.context === "number" ? `, context ${model.context.toLocaleString("en")}` : "";
    const text = model.state === "loaded" ? `${model.devices ?? "loaded"}${context}` : STATES[model.state];
    return element("div", { class: "panel-model" }, element("strong", {}, model.id), element("span", { class: "hint" }, text));
  }

  private drawFailure(error: unknown): void {
    const missing = error instanceof ServerError && error.status === 404;
    const text = missing ? "This server does not report its status." : error instanceof Error ? error.message : "The status could not be read.";
    this.content.replaceChildren(element("p", { class: "hint", role: "status" }, text));
  }
}

function otherModels(models: ModelStatus[]): HTMLElement {
  const rows = models.map((model) => element("li", {}, element("span", {}, model.id), element("span", { class: "hint" }, STATES[model.state])));
  return element("section", { "data-section": "models" }, element("h3", {}, "Other models"), element("ul", { class: "models" }, ...rows));
}

function versionText(status: Status): string {
  const version = status.version ? `Pianola ${status.version}` : "Pianola";
  return typeof status.uptime_seconds === "number" ? `${version}, up ${duration(status.uptime_seconds)}` : version;
}
