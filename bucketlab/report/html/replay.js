// A step's replay in the page: bucketlab/predict/replay.py, assignment.py and link/curve.py, operation by operation,
// so that doubles come out the same to well below a nanosecond. tests/report/html holds the two against each other.
// A change there is a change here.

const NOTHING_NS = 1e-6;
const RATIO_FLOOR_NS = 1e-9;

/** Buckets (lists of positions) that DDP makes of gradients in the order in which they are ready. */
function assign(sizes, caps, kinds) {
  const buckets = [];
  const open = new Map();
  sizes.forEach((size, at) => {
    if (kinds[at] < 0) {
      buckets.push([at]); // a sparse gradient travels alone
      return;
    }
    if (!open.has(kinds[at])) open.set(kinds[at], { members: [], bytes: 0, closed: 0 });
    const bucket = open.get(kinds[at]);
    bucket.members.push(at);
    bucket.bytes += size;
    if (bucket.bytes >= caps[Math.min(bucket.closed, caps.length - 1)]) {
      buckets.push(bucket.members);
      bucket.members = [];
      bucket.bytes = 0;
      bucket.closed += 1;
    }
  });
  const rest = [...open.values()].reverse().filter((bucket) => bucket.members.length);
  return buckets.concat(rest.map((bucket) => bucket.members));
}

function bucketsOf(module, caps) {
  const made = assign(module.bytes, caps, module.kinds);
  if (module.rebuilt) return made;
  // The smallest position in each bucket is its first: gradients are put in by rising position.
  return made.sort((a, b) => b[0] - a[0]);
}

/** numpy.interp for one x. */
function interpolate(x, xs, ys) {
  const last = xs.length - 1;
  if (x < xs[0]) return ys[0];
  if (x >= xs[last]) return ys[last];
  let low = 0;
  let high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  const slope = (ys[high] - ys[low]) / (xs[high] - xs[low]);
  return slope * (x - xs[low]) + ys[low];
}

/** Time of one all-reduce alone on the link. */
function timeOnLink(curve, bytes) {
  const beyond = Math.max(bytes - curve.bytes[curve.bytes.length - 1], 0);
  return interpolate(bytes, curve.bytes, curve.ns) + beyond * curve.slope_ns;
}

/** Python's round(): halves go to the even neighbour. */
function roundHalfEven(x) {
  const floor = Math.floor(x);
  if (x - floor !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}

/**
 * The curve carried over to other ranks and another bandwidth, as bucketlab/predict/whatif.py does it for a ring over
 * hops that are all alike: stretched at each size by the asked for line over the fitted one.
 */
function carriedOver(curve, ranks, bandwidthFactor) {
  const hops = 2 * (curve.ranks - 1);
  const hopLatency = curve.latency_ns / hops;
  const hopBandwidth = (curve.bandwidth_gb_s * hops) / curve.ranks;
  const latency = 2 * (ranks - 1) * hopLatency;
  const slope = ((2 * (ranks - 1)) / ranks) * (1 / (hopBandwidth * bandwidthFactor));
  let highest = 0;
  const ns = curve.ns.map((value, at) => {
    const fitted = curve.latency_ns + curve.bytes[at] / curve.bandwidth_gb_s;
    const asked = latency + curve.bytes[at] * slope;
    highest = Math.max(highest, (value * asked) / Math.max(fitted, RATIO_FLOOR_NS));
    return highest;
  });
  return {
    ...curve,
    ns,
    slope_ns: curve.slope_ns * slope * curve.bandwidth_gb_s,
    latency_ns: roundHalfEven(latency),
    bandwidth_gb_s: 1 / slope,
  };
}

/** Launch in compute's own time, bytes, module and members of each bucket, in the order in which the link gets them. */
function queueOf(model, layouts) {
  const queue = [];
  layouts.forEach((buckets, number) => {
    const { ready_ns: ready, bytes } = model.modules[number];
    let launch = -Infinity;
    for (const members of buckets) {
      let size = 0;
      for (const one of members) {
        launch = Math.max(launch, ready[one]);
        size += bytes[one];
      }
      queue.push({ launch, bytes: size, module: number, members });
    }
  });
  return layouts.length > 1 ? queue.sort((a, b) => a.launch - b.launch) : queue;
}

/** One step with these buckets. `layouts`: of each module, its buckets in order. Times in ns from the step's start. */
function replay(model, layouts, curve) {
  const queue = queueOf(model, layouts);
  const works = queue.map((one) => timeOnLink(curve, one.bytes));
  const run = { start: [], end: [], done: [0], at: [0], computeEnd: 0 };
  if (curve.concurrency === 1) inTurn(run, queue, works, model);
  else severalAtATime(run, queue, works, model, curve);
  const over = run.end.reduce((a, b) => Math.max(a, b), run.computeEnd);
  const buckets = queue.map((one, index) => ({
    index,
    module: one.module,
    members: one.members,
    bytes: one.bytes,
    ready_ns: interpolate(one.launch, run.done, run.at),
    start_ns: run.start[index],
    end_ns: run.end[index],
    exposed_ns: Math.max(0, run.end[index] - Math.max(run.start[index], run.computeEnd)),
  }));
  return {
    buckets,
    compute_end_ns: run.computeEnd,
    over_ns: over,
    step_ns: over + model.optimizer_ns,
    communication_ns: movingUntil(run, Infinity),
    overlap_ns: movingUntil(run, run.computeEnd),
    clock: { done: run.done, at: run.at },
  };
}

function movingUntil(run, limit) {
  let total = 0;
  let before = 0;
  run.start.forEach((start, index) => {
    const end = Math.max(before, Math.min(run.end[index], limit));
    total += Math.max(0, end - Math.max(start, before));
    before = end;
  });
  return total;
}

function finishCompute(run, now, done, compute) {
  if (done < compute) {
    run.done.push(compute);
    run.at.push(now + compute - done);
  }
  run.computeEnd = run.at[run.done.findIndex((done) => done >= compute)];
}

function inTurn(run, queue, works, model) {
  const compute = model.compute_end_ns;
  const slower = 1 + model.slowed_communication;
  const pace = slower / (1 + model.slowed_compute);
  let now = 0;
  let done = 0;
  const note = (at) => {
    run.done.push(done);
    run.at.push(at);
  };
  queue.forEach(({ launch }, index) => {
    const work = works[index];
    if (done < launch) {
      now += launch - done;
      done = launch;
      note(now);
    }
    run.start.push(now);
    if (done === compute) {
      now += work;
    } else if (done + work * pace < compute) {
      now += work * slower;
      done += work * pace;
      note(now);
    } else {
      const together = (compute - done) / pace;
      done = compute;
      note(now + together * slower);
      now += together * slower + work - together;
    }
    run.end.push(now);
  });
  finishCompute(run, now, done, compute);
}

function severalAtATime(run, queue, works, model, curve) {
  const count = queue.length;
  const compute = model.compute_end_ns;
  const latency = curve.latency_ns;
  const computeRate = 1 / (1 + model.slowed_compute);
  const slower = 1 / (1 + model.slowed_communication);
  let moving = []; // latency left, bytes' time left, number of the bucket
  let now = 0;
  let done = 0;
  let sent = 0;
  const note = (at) => {
    run.done.push(done);
    run.at.push(at);
  };
  while (sent < count || moving.length) {
    if (!moving.length && done < queue[sent].launch) {
      now += queue[sent].launch - done;
      done = queue[sent].launch;
      note(now);
    }
    const computing = done < compute;
    while (sent < count && moving.length < curve.concurrency && queue[sent].launch <= done) {
      const first = Math.min(latency, works[sent]);
      moving.push([first, works[sent] - first, sent]);
      run.start[sent] = now;
      sent += 1;
    }
    const rate = computing ? slower : 1;
    const sharing = moving.filter((one) => one[0] <= 0).length;
    const share = sharing < 2 ? rate : (rate * curve.pair_gain) / sharing;
    let ahead = Infinity;
    for (const one of moving) ahead = Math.min(ahead, one[0] > 0 ? one[0] / rate : one[1] / share);
    if (computing) {
      let target = compute;
      if (sent < count && moving.length < curve.concurrency) target = Math.min(target, queue[sent].launch);
      if (target - done <= ahead * computeRate) {
        ahead = (target - done) / computeRate;
        done = target;
      } else {
        done += ahead * computeRate;
      }
      note(now + ahead);
    }
    now += ahead;
    for (const one of moving) {
      if (one[0] > 0) {
        const left = one[0] - ahead * rate;
        one[0] = left > NOTHING_NS ? left : 0;
      } else {
        one[1] -= ahead * share;
      }
      if (one[0] <= 0 && one[1] <= NOTHING_NS) run.end[one[2]] = now;
    }
    moving = moving.filter((one) => one[0] > 0 || one[1] > NOTHING_NS);
  }
  finishCompute(run, now, done, compute);
}

/** Consecutive buckets of these sizes, in bytes: what a planner chose for the one module there is. */
function bucketsOfSizes(module, sizes) {
  let next = 0;
  return sizes.map((size) => {
    const members = [];
    let left = size;
    while (next < module.bytes.length && (left > 0 || module.bytes[next] === 0)) {
      members.push(next);
      left -= module.bytes[next];
      next += 1;
    }
    return members;
  });
}

/**
 * The step at a setting. `setting.caps_bytes`: capacities of all modules, or null for those in force; `setting.sizes`:
 * instead of them, the buckets themselves; `setting.ranks` and `setting.bandwidth`: number of ranks and factor on the
 * link's bandwidth, or null as measured.
 */
function replayAt(model, setting) {
  const layouts = setting.sizes
    ? [bucketsOfSizes(model.modules[0], setting.sizes)]
    : model.modules.map((one) => bucketsOf(one, setting.caps_bytes || one.caps_bytes));
  return replay(model, layouts, curveAt(model, setting));
}

function curveAt(model, setting) {
  if (setting.ranks === null && setting.bandwidth === null) return model.curve;
  return carriedOver(model.curve, setting.ranks ?? model.curve.ranks, setting.bandwidth ?? 1);
}

/** Capacities, in bytes, of one number in MiB, as DDP takes it: it holds for the first bucket too. */
function capsOf(capMb) {
  return [Math.trunc(capMb * 1048576)];
}
