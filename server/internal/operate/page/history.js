// The last ten minutes of every model and application: a sample for each status that the page has
// received, and what the server has kept from before. The server counts; rates and shares are
// computed here from two counts.

import { byId, id } from './format.js';

const kept = 600; // seconds

// since is the increase of a count, which restarts at 0 if its model was removed and added again.
const since = (now = 0, before = 0) => (now < before ? now : now - before);

// quantile is the time within which the share q of the requests between two counts were answered;
// null if there were none. Within a class they are spread evenly over the logarithm.
function quantile(now, before, q) {
  const old = new Map(before.map((k) => [k.above_seconds, k.requests]));
  const counts = now.map((k) => since(k.requests, old.get(k.above_seconds)));
  let rank = q * counts.reduce((a, b) => a + b, 0);
  for (let i = 0; i < now.length; i++) {
    const { above_seconds: above, up_to_seconds: upTo } = now[i];
    if (counts[i] === 0 || rank > counts[i]) {
      rank -= counts[i];
      continue;
    }
    if (!upTo) return above;
    const from = above || upTo / 2;
    return from * (upTo / from) ** (Math.max(rank, 0) / counts[i]);
  }
  return null;
}

// between is what happened to a model between two of its counts, that many seconds apart.
export function between(old, m, span) {
  const requests = since(m.requests, old.requests), judged = since(m.judged, old.judged);
  return {
    requests: requests / span,
    failed: since(m.failed, old.failed) / span,
    superseded: since(m.superseded, old.superseded) / span,
    judged: judged / span,
    inTime: judged > 0 ? Math.min(1, since(m.in_time, old.in_time) / judged) : null,
    p50: quantile(m.durations, old.durations, 0.5),
    p99: quantile(m.durations, old.durations, 0.99),
  };
}

// measures are the values kept for each model in each sample.
const measures = ['requests', 'failed', 'superseded', 'inTime', 'p50', 'p99', 'waiting'];

export class History {
  constructor() {
    this.times = []; // seconds since 1970
    this.tracks = new Map(); // by name/version: measure -> values, as many as times
    this.shares = new Map(); // by application: model -> shares, as many as times
    this.before = null;
  }

  // add takes a status and the known applications, and returns the new values of each model by
  // name/version.
  add(status, applications) {
    // Another run of the server starts its counts anew, and the server has better samples of a gap.
    const follows = this.before?.started === status.started && status.uptime_seconds - this.before.uptime_seconds < 15;
    const before = follows ? this.before : null;
    this.before = status;
    const span = before ? Math.max(status.uptime_seconds - before.uptime_seconds, 0.001) : 0;
    this.times.push(Date.parse(status.started) / 1000 + status.uptime_seconds);
    const now = new Map();
    const earlier = byId(before?.models);
    for (const m of status.models) {
      const key = id(m);
      const old = earlier.get(key);
      const one = old ? between(old, m, span) : {};
      one.waiting = m.queue_rows;
      now.set(key, one);
      this.keep(this.tracks, key, measures, one);
    }
    for (const a of applications ?? []) {
      const values = Object.fromEntries((a.learned?.models ?? []).map((m) => [m.model, m.share]));
      this.keep(this.shares, a.name, Object.keys(values), values);
    }
    this.forget(this.tracks, (key) => now.has(key));
    this.forget(this.shares, (key) => applications?.some((a) => a.name === key));
    while (this.times[0] <= this.last() - kept) this.drop();
    return now;
  }

  // last is the time of the newest sample; 0: there is none.
  last() {
    return this.times.at(-1) ?? 0;
  }

  // fill adds what the server has kept from the time in which the page was closed or hidden.
  fill({ times, models, applications }) {
    const at = (series, i) => Object.fromEntries(Object.entries(series).map(([key, list]) => [key, list[i]]));
    times.forEach((time, i) => {
      if (time <= this.last()) return;
      this.times.push(time);
      for (const { name, version, in_time: inTime, ...series } of models) this.keep(this.tracks, `${name}/${version}`, measures, at({ ...series, inTime }, i));
      for (const { name, shares } of applications) this.keep(this.shares, name, Object.keys(shares), at(shares, i));
    });
  }

  // keep appends values to a track, with gaps where there were none.
  keep(tracks, key, names, values) {
    const track = tracks.get(key) ?? {};
    tracks.set(key, track);
    for (const name of new Set([...names, ...Object.keys(track)])) {
      const list = track[name] ??= [];
      while (list.length < this.times.length - 1) list.push(null);
      list.push(values[name] ?? null);
    }
  }

  // forget drops the tracks of models and applications that no longer exist.
  forget(tracks, there) {
    for (const key of tracks.keys()) if (!there(key)) tracks.delete(key);
  }

  // drop removes the first sample, and models that have no share any more, such as a version that
  // was replaced.
  drop() {
    this.times.shift();
    for (const tracks of [this.tracks, this.shares]) {
      for (const track of tracks.values()) {
        for (const [name, list] of Object.entries(track)) {
          list.shift();
          if (tracks === this.shares && list.every((v) => v === null)) delete track[name];
        }
      }
    }
  }
}
