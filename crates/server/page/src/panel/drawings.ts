// The drawings of the live panel, in SVG. Sizes are in a grid of WIDTH units across.

import { svg } from "../dom";
import { rate } from "../format";
import { WINDOW_SECONDS, type RatePoint } from "./history";

const WIDTH = 288;
const CHART_HEIGHT = 88;
const BAR_HEIGHT = 12;
const LANES_PER_ROW = 32;
const MAX_LANE_ROWS = 4;
const LANE_GAP = 2;

export interface Segment {
  size: number;
  /** Class of the style sheet that gives the colour. */
  tone: string;
  title: string;
}

/** Tokens per second over the last two minutes, with the ceiling as a line across. */
export function throughputChart(points: RatePoint[], ceiling: number | null, now: number): SVGElement {
  const known = points.filter((point): point is { time: number; rate: number } => point.rate !== null);
  const top = Math.max(1, ceiling ?? 0, ...known.map((point) => point.rate)) * 1.15;
  const x = (time: number): number => round(WIDTH - ((now - time) / WINDOW_SECONDS) * WIDTH);
  const y = (value: number): number => round(CHART_HEIGHT - (value / top) * CHART_HEIGHT);
  const runs = runsOf(points).map((run) => {
    const line = run.map((point, index) => `${index === 0 ? "M" : "L"}${x(point.time)} ${y(point.rate)}`).join("");
    const area = `${line}L${x(run.at(-1)!.time)} ${CHART_HEIGHT}L${x(run[0]!.time)} ${CHART_HEIGHT}Z`;
    return svg("g", {}, svg("path", { class: "area", d: area }), svg("path", { class: "line", d: line }));
  });
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${CHART_HEIGHT}`, role: "img", "aria-label": chartLabel(known, ceiling) });
  for (const part of [0.25, 0.5, 0.75]) chart.append(svg("line", { class: "grid", x1: WIDTH * part, x2: WIDTH * part, y1: 0, y2: CHART_HEIGHT }));
  chart.append(...runs, svg("line", { class: "base", x1: 0, x2: WIDTH, y1: CHART_HEIGHT - 0.5, y2: CHART_HEIGHT - 0.5 }));
  if (ceiling !== null) {
    const height = y(ceiling);
    chart.append(
      svg("line", { class: "ceiling", x1: 0, x2: WIDTH, y1: height, y2: height }),
      svg("text", { class: "label", x: 4, y: height < 16 ? height + 13 : height - 5 }, `ceiling ${rate(ceiling)}`),
    );
  }
  return chart;
}

function chartLabel(points: { rate: number }[], ceiling: number | null): string {
  const peak = points.length > 0 ? `at most ${rate(Math.max(...points.map((point) => point.rate)))} tokens per second` : "no figures yet";
  return `Speed over the last two minutes: ${peak}${ceiling === null ? "" : `; the ceiling is ${rate(ceiling)}`}`;
}

/** Unbroken stretches of at least two points. */
function runsOf(points: RatePoint[]): { time: number; rate: number }[][] {
  const runs: { time: number; rate: number }[][] = [[]];
  for (const { time, rate: value } of points) {
    if (value === null) runs.push([]);
    else runs.at(-1)!.push({ time, rate: value });
  }
  return runs.filter((run) => run.length > 1);
}

/** A bar of segments side by side, as wide as their sizes; `total` leaves the rest empty. */
export function segmentBar(segments: Segment[], total: number, label: string): SVGElement {
  const bar = svg("svg", { class: "bar", viewBox: `0 0 ${WIDTH} ${BAR_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  bar.append(svg("rect", { class: "track", x: 0, y: 0, width: WIDTH, height: BAR_HEIGHT }));
  let at = 0;
  for (const { size, tone, title } of segments) {
    const width = total > 0 ? Math.min(WIDTH - at, (size / total) * WIDTH) : 0;
    if (width <= 0) continue;
    // A gap of one unit keeps neighbours apart without relying on their colours.
    bar.append(svg("rect", { class: tone, x: round(at), y: 0, width: round(Math.max(0.75, width - (at + width < WIDTH - 0.5 ? 1 : 0))), height: BAR_HEIGHT }, svg("title", {}, title)));
    at += width;
  }
  return bar;
}

/** One square for each request that the server can run at once; those under way are filled. */
export function laneSquares(lanes: number, running: number, waiting: number): SVGElement {
  const rows = Math.min(MAX_LANE_ROWS, Math.ceil(lanes / LANES_PER_ROW));
  const perRow = Math.min(LANES_PER_ROW, Math.ceil(lanes / rows));
  const shown = Math.min(lanes, rows * perRow);
  const step = Math.min(16, (WIDTH + LANE_GAP) / perRow);
  const label = `${running} of ${lanes} running, ${waiting} waiting`;
  const squares = svg("svg", { class: "lanes", viewBox: `0 0 ${WIDTH} ${round(rows * step - LANE_GAP)}`, role: "img", "aria-label": label });
  for (let lane = 0; lane < shown; lane += 1) {
    const x = round((lane % perRow) * step);
    const y = round(Math.floor(lane / perRow) * step);
    const size = round(step - LANE_GAP);
    // Where there are more lanes than squares, a square stands for several.
    squares.append(svg("rect", { class: lane < (running * shown) / lanes ? "tone-0" : "track", x, y, width: size, height: size, rx: 2 }));
  }
  return squares;
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}
