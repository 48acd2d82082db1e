// Numbers as a reader wants them.

export function count(value: number): string {
  return value.toLocaleString("en", { maximumFractionDigits: 0 });
}

/** Three digits are enough for a speed. */
export function rate(value: number): string {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 });
}

export function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size.toLocaleString("en", { maximumFractionDigits: unit > 0 && size < 100 ? 1 : 0 })} ${units[unit]}`;
}

export function seconds(milliseconds: number): string {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const value = milliseconds / 1000;
  return `${value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 1 })} s`;
}

export function duration(total: number): string {
  const whole = Math.floor(total);
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ] as const;
  const first = parts.findIndex(([amount]) => amount > 0);
  return parts
    .slice(first < 0 ? 3 : first, first < 0 ? 4 : first + 2)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}
