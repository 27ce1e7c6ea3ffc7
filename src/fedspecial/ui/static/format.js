// Numbers as texts.

// How values of a run's main metric are written: in per cent if its range is 0…1, as plain numbers otherwise.
export class Scale {
  // metric: {title, percent} of a run
  constructor({ title = "accuracy", percent = true } = {}) {
    this.name = title;
    this.title = title[0].toUpperCase() + title.slice(1);
    this.factor = percent ? 100 : 1;
    this.digits = percent ? 1 : 3;
    this.unit = percent ? ", %" : "";
    this.changeUnit = percent ? ", points" : "";
    this.range = percent ? [0, 100] : null;
    this.key = `${title} ${percent}`;
  }

  // A number for a chart.
  scaled(value) {
    return value === null || value === undefined ? null : this.factor * value;
  }

  text(value) {
    if (value === null || value === undefined) return "–";
    return (this.factor * value).toFixed(this.digits).replace("-", "−");
  }

  signed(value) {
    return value > 0 ? `+${this.text(value)}` : this.text(value);
  }
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let number = value;
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(number) : Number(number.toPrecision(3))} ${units[unit]}`;
}

export function ago(seconds) {
  if (!seconds) return "–";
  const passed = Date.now() / 1000 - seconds;
  return passed < 5 ? "now" : `${duration(passed)} ago`;
}

export const whole = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

export function meanStd(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return null;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const square = known.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, std: known.length > 1 ? Math.sqrt(square / (known.length - 1)) : null, n: known.length };
}
