//! What [`crate::crash`] found, as text and as a curve.

use std::fmt::Write as _;

use crate::crash::{Bucket, Outcome};
use crate::svg::{escaped, number, step};

const LEFT: f64 = 64.0;
const TOP: f64 = 40.0;
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
/// Below the plot: the axis, then one line of text for each moment.
const AXIS: f64 = 40.0;
const LINE: f64 = 18.0;
const READS: &str = "#0072b2";
const UPDATES: &str = "#e69f00";
const DEAD: &str = "#777777";

fn mops(count: u64, o: &Outcome) -> f64 {
    count as f64 / o.setup.bucket_us as f64
}

fn ms(ns: u64) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}

impl Outcome {
    /// Whether nothing acknowledged was lost and no survivor's operation failed.
    pub fn is_fine(&self) -> bool {
        self.keys_wrong == 0 && self.errors == 0
    }

    /// The report.
    pub fn text(&self) -> String {
        let s = &self.setup;
        let mut t = String::new();
        let dies = if s.hung { "hangs; its NIC goes on serving" } else { "dies" };
        let _ = writeln!(
            t,
            "simulated cluster, profile {}, seed {}: {} compute nodes of {} threads with {} clients each; cn{} {dies}\n{} keys, {} % updates; lease {}\n",
            s.profile,
            s.seed,
            s.cns,
            s.threads,
            s.coroutines,
            s.cns - 1,
            s.keys,
            s.update_percent,
            ms(s.lease_us * 1000)
        );
        for m in &self.moments {
            let after = m.at_ns as f64 / 1e6 - s.crash_us as f64 / 1e3;
            let _ = writeln!(t, "{:>10}  {after:+8.2} ms  {}", ms(m.at_ns), m.what);
        }
        let _ = writeln!(
            t,
            "\nsurvivors: {:.2} Mops before, {:.2} at least meanwhile, {:.2} afterwards (virtual time)",
            self.before_mops, self.least_mops, self.after_mops
        );
        let _ = writeln!(
            t,
            "longest operation of a survivor from the crash on: read {}, update {}",
            ms(self.longest_read_ns),
            ms(self.longest_update_ns)
        );
        let _ = writeln!(
            t,
            "{} written keys looked up in the end: {} lost or wrong; {} unacknowledged updates of the dead node took effect\n{} operations of survivors failed",
            self.keys_checked, self.keys_wrong, self.taken_effect, self.errors
        );
        self.samples.iter().for_each(|e| {
            let _ = writeln!(t, "  {e}");
        });
        t
    }

    /// The curve: operations per second of the survivors and of the node that dies, with the moments.
    pub fn svg(&self) -> String {
        let all = |b: &Bucket| mops(b.reads + b.updates, self);
        let high = self.survivors.iter().map(all).fold(0.0, f64::max).max(1e-9);
        let mark = step(high);
        let top = (high / mark).ceil() * mark;
        let y = |v: f64| TOP + HEIGHT - HEIGHT * (v / top).clamp(0.0, 1.0);
        let span = self.setup.until_us as f64;
        let x = |us: f64| LEFT + WIDTH * (us / span).clamp(0.0, 1.0);
        let height = TOP + HEIGHT + AXIS + LINE * self.moments.len() as f64 + 10.0;
        let title = format!(
            "{} of {} compute nodes dies: {} keys, {} % updates",
            1, self.setup.cns, self.setup.keys, self.setup.update_percent
        );
        let mut s = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>\n",
            LEFT + WIDTH + 170.0,
            LEFT + WIDTH + 170.0
        );
        self.axes(&mut s, (mark, top), &y, &x);
        self.curve(&mut s, ("survivors, all", READS), &self.survivors, (&all, &x, &y), 0);
        let updates = |b: &Bucket| mops(b.updates, self);
        self.curve(&mut s, ("survivors, updates", UPDATES), &self.survivors, (&updates, &x, &y), 1);
        self.curve(&mut s, ("the node that dies", DEAD), &self.dead, (&all, &x, &y), 2);
        for (i, m) in self.moments.iter().enumerate() {
            let (at, n) = (x(m.at_ns as f64 / 1e3), i + 1);
            let below = TOP + HEIGHT + AXIS + LINE * n as f64;
            let _ = writeln!(
                s,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#d55e00\" stroke-dasharray=\"3 3\"/>\n<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#d55e00\">{n}</text>\n<text x=\"{LEFT}\" y=\"{below:.1}\">{n}: {}, {}</text>",
                TOP + HEIGHT,
                TOP - 4.0 - 10.0 * (i % 2) as f64 + 6.0,
                ms(m.at_ns),
                escaped(&m.what)
            );
        }
        s + "</svg>\n"
    }

    fn axes(
        &self,
        s: &mut String,
        (mark, top): (f64, f64),
        y: &dyn Fn(f64) -> f64,
        x: &dyn Fn(f64) -> f64,
    ) {
        for i in 0..=(top / mark).round() as usize {
            let v = mark * i as f64;
            let _ = writeln!(
                s,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT + WIDTH,
                y(v),
                y(v),
                LEFT - 6.0,
                y(v) + 4.0,
                number(v)
            );
        }
        let span = self.setup.until_us as f64 / 1e3;
        let each = step(span);
        for i in 0..=(span / each) as usize {
            let v = each * i as f64;
            let _ = writeln!(
                s,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x(v * 1e3),
                TOP + HEIGHT + 16.0,
                number(v)
            );
        }
        let _ = writeln!(
            s,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">virtual time, ms</text>\n<text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">million operations per second</text>",
            LEFT + WIDTH / 2.0,
            TOP + HEIGHT + 32.0,
            TOP + HEIGHT / 2.0
        );
    }

    #[expect(clippy::type_complexity, reason = "three functions of a chart")]
    fn curve(
        &self,
        s: &mut String,
        (name, colour): (&str, &str),
        buckets: &[Bucket],
        (value, x, y): (&dyn Fn(&Bucket) -> f64, &dyn Fn(f64) -> f64, &dyn Fn(f64) -> f64),
        row: usize,
    ) {
        let width = self.setup.bucket_us as f64;
        let points = buckets
            .iter()
            .enumerate()
            .map(|(i, b)| format!("{:.1},{:.1}", x((i as f64 + 0.5) * width), y(value(b))));
        let points = points.collect::<Vec<_>>().join(" ");
        let at = TOP + 18.0 * row as f64;
        let _ = writeln!(
            s,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n<rect x=\"{:.1}\" y=\"{at:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            LEFT + WIDTH + 14.0,
            LEFT + WIDTH + 32.0,
            at + 10.0
        );
    }
}
