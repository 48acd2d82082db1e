// Line icons on a grid of 20 by 20.

import { svg } from "../dom";

const PATHS = {
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  plus: "M10 4v12M4 10h12",
  search: "M9 3.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 0 0 0-11zM13 13l4 4",
  sliders: "M3 6h7M14 6h3M12 4v4M3 14h3M10 14h7M8 12v4",
  activity: "M2.5 10.5h3.5l2.5-6.5l3.5 12l2.5-5.5h3",
  send: "M10 16.5v-13M4.5 9l5.5-5.5l5.5 5.5",
  stop: "M6 6h8v8h-8z",
  copy: "M7.5 7.5h9v9h-9zM12.5 7.5v-4h-9v9h4",
  retry: "M16 10a6 6 0 1 1-1.8-4.3L16.5 8M16.5 3.5v4.5h-4.5",
  pencil: "M3.5 16.5l.8-3.6l9.3-9.3l2.8 2.8l-9.3 9.3zM11.5 5.7l2.8 2.8",
  trash: "M3.5 5.5h13M8 5.5v-2h4v2M5.5 5.5l.7 11h7.6l.7-11M8.5 8.5v5M11.5 8.5v5",
  theme: "M10 3a7 7 0 1 0 0 14a7 7 0 0 0 0-14zM10 3v14M13 4l0 12M16 7v6",
  keyboard: "M2.5 5.5h15v9h-15zM5.5 8.5h.1M8.5 8.5h.1M11.5 8.5h.1M14.5 8.5h.1M6.5 11.5h7",
  download: "M10 3v9.5M6 9l4 4l4-4M3.5 16.5h13",
  upload: "M10 13v-9.5M6 7l4-4l4 4M3.5 16.5h13",
  close: "M5 5l10 10M15 5l-10 10",
  down: "M10 3.5v13M4.5 11l5.5 5.5l5.5-5.5",
} as const;

export type IconName = keyof typeof PATHS;

export function icon(name: IconName): SVGElement {
  return svg("svg", { class: "icon", viewBox: "0 0 20 20", width: 20, height: 20, "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

/** Puts the icons into the buttons of index.html that name one. */
export function fillIcons(): void {
  for (const place of document.querySelectorAll<HTMLElement>("[data-icon]")) place.prepend(icon(place.dataset.icon as IconName));
}
