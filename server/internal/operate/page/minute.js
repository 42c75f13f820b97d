// The last minute of every model, application and pipeline: one second has too few requests to
// tell a share or a quantile.

import { byId } from './format.js';
import { between } from './history.js';

const whole = 60,
  every = 5; // seconds

export class Minute {
  constructor() {
    this.kept = []; // statuses, the oldest first
    this.span = 0; // seconds from the oldest one to the newest
  }

  // add takes a status, and returns what happened since the oldest one, by name/version.
  add(status) {
    const at = status.uptime_seconds,
      last = this.kept.at(-1);
    const follows = last?.started === status.started && at - last.at <= 3 * every;
    if (!follows) this.kept = []; // another run, or a gap
    while (this.kept.length > 1 && this.kept[1].at <= at - whole) this.kept.shift();
    const models = byId(status.models);
    const [first] = this.kept;
    const figures = new Map();
    this.span = first ? at - first.at : 0;
    for (const [key, m] of models) {
      const old = first?.models.get(key);
      figures.set(key, old ? between(old, m, Math.max(this.span, 0.001)) : {});
    }
    if (!first || at - this.kept.at(-1).at >= every) this.kept.push({ started: status.started, at, models });
    return figures;
  }
}
