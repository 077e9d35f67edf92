//! Small charts for the report, side by side: bars and curves, each with its own axis. Every drawn value carries the cell and
//! field that it is of (`data-cell`, `data-field`, `data-value`), so that a test can compare them with `results.json`.

use crate::svg::{escaped, number, step};

/// Readable on white for most eyes (Okabe and Ito), then darker ones.
const COLOURS: [&str; 10] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7f6a00", "#000000",
    "#777777", "#5b2a86",
];
const LEFT: f64 = 52.0;
const TOP: f64 = 34.0;
const HEIGHT: f64 = 170.0;
const RIGHT: f64 = 14.0;

/// The colour of the series with this number.
pub fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()]
}

/// Where a drawn value is from.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The cell's key.
    pub cell: String,
    /// The field of the cell.
    pub field: &'static str,
}

impl Source {
    /// The attributes of an element that shows `value`.
    pub fn attributes(&self, value: f64) -> String {
        format!(
            " data-cell=\"{}\" data-field=\"{}\" data-value=\"{value}\"",
            escaped(&self.cell),
            self.field
        )
    }
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// The series' name.
    pub name: String,
    /// The series' colour.
    pub colour: &'static str,
    /// How high.
    pub value: f64,
    /// What was published, if anything was.
    pub mark: Option<f64>,
    /// Where the value is from.
    pub source: Source,
}

/// A chart of bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// Title.
    pub title: String,
    /// What the vertical axis shows, with its unit.
    pub axis: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// One point of a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Along the horizontal axis.
    pub x: f64,
    /// How its place is named.
    pub label: String,
    /// How high.
    pub value: f64,
    /// What was published, if anything was.
    pub mark: Option<f64>,
    /// Where the value is from.
    pub source: Source,
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The series' name.
    pub name: String,
    /// The series' colour.
    pub colour: &'static str,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

/// A chart of curves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// Title.
    pub title: String,
    /// What the vertical axis shows, with its unit.
    pub axis: String,
    /// What the horizontal axis shows.
    pub across: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// A drawn chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Its size, pixels.
    pub size: (f64, f64),
    body: String,
}

impl Panel {
    fn with(&self, attributes: &str) -> String {
        let (width, height) = self.size;
        format!(
            "<svg {attributes} width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n{}</svg>\n",
            self.body
        )
    }

    /// The SVG.
    pub fn svg(&self) -> String {
        self.with("xmlns=\"http://www.w3.org/2000/svg\" role=\"img\"")
    }

    /// The SVG as a part of another one, with its upper left corner there.
    pub fn at(&self, x: f64, y: f64) -> String {
        self.with(&format!("x=\"{x:.0}\" y=\"{y:.0}\""))
    }
}

/// A vertical axis from 0 to a round number above all values.
struct Axis {
    top: f64,
    step: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let high = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let high = if high > 0.0 { high * 1.08 } else { 1.0 };
        let step = step(high);
        Self { top: (high / step).ceil() * step, step }
    }

    fn y(&self, v: f64) -> f64 {
        TOP + HEIGHT - HEIGHT * (v / self.top).clamp(0.0, 1.0)
    }

    /// Title, grid and names of the axis, for a plot this wide.
    fn frame(&self, title: &str, axis: &str, plot: f64) -> String {
        let mut s = format!(
            "<title>{0}, {1}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"18\" font-size=\"13\" font-weight=\"bold\">{0}</text>\n",
            escaped(title),
            escaped(axis)
        );
        let marks = (self.top / self.step).round() as usize;
        for i in 0..=marks {
            let v = self.step * i as f64;
            let y = self.y(v);
            s += &format!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{}\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                LEFT + plot,
                if i == 0 { "#333" } else { "#e2e2e2" },
                LEFT - 5.0,
                y + 4.0,
                number(v)
            );
        }
        s += &format!(
            "<text transform=\"translate(13 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#444\">{}</text>\n",
            TOP + HEIGHT / 2.0,
            escaped(axis)
        );
        s
    }
}

/// The size of a chart whose plot is so wide, with so much below it.
fn size(plot: f64, below: f64) -> (f64, f64) {
    (LEFT + plot + RIGHT, TOP + HEIGHT + below)
}

impl Bars {
    /// As drawn.
    pub fn panel(&self) -> Panel {
        let n = self.bars.len().max(1) as f64;
        let each = (190.0 / n).clamp(34.0, 56.0);
        let plot = each * n + 10.0;
        // Room for the title, whatever the number of bars.
        let plot = plot.max(8.0 * self.title.chars().count() as f64);
        let axis = Axis::over(self.bars.iter().flat_map(|b| [Some(b.value), b.mark]).flatten());
        let mut s = axis.frame(&self.title, &self.axis, plot);
        for (i, b) in self.bars.iter().enumerate() {
            let x = LEFT + 8.0 + each * i as f64;
            let wide = each - 8.0;
            let y = axis.y(b.value);
            let mark = b.mark.map(|m| format!("; published {}", number(m))).unwrap_or_default();
            s += &format!(
                "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" fill=\"{}\"{}><title>{}: {}{mark}</title></rect>\n",
                (TOP + HEIGHT - y).max(0.0),
                b.colour,
                b.source.attributes(b.value),
                escaped(&b.name),
                number(b.value)
            );
            // The number stands above whatever is higher, bar or mark, so that the two never cross.
            let above = b.mark.map_or(y, |m| axis.y(m).min(y));
            s += &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{}</text>\n",
                x + wide / 2.0,
                above - 4.0,
                number(b.value)
            );
            if let Some(m) = b.mark {
                s += &published_bar(x, x + wide, axis.y(m));
            }
        }
        Panel { size: size(plot, 14.0), body: s }
    }
}

/// The mark of a published value across a bar.
fn published_bar(from: f64, to: f64, y: f64) -> String {
    format!(
        "<line class=\"published\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"white\" stroke-width=\"5\"/><line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#111\" stroke-width=\"2.5\"/>\n",
        from - 3.0,
        to + 3.0,
        from - 3.0,
        to + 3.0
    )
}

impl Curves {
    /// As drawn.
    pub fn panel(&self) -> Panel {
        let plot = (8.0 * self.title.chars().count() as f64).max(260.0);
        let points = || self.curves.iter().flat_map(|c| &c.points);
        let axis = Axis::over(points().flat_map(|p| [Some(p.value), p.mark]).flatten());
        let mut s = axis.frame(&self.title, &self.axis, plot);
        let mut ticks: Vec<(f64, &str)> = points().map(|p| (p.x, p.label.as_str())).collect();
        ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
        ticks.dedup_by(|a, b| a.0 == b.0);
        let across = Across::over(&ticks, plot - 20.0);
        let mut free = f64::NEG_INFINITY;
        for (x, label) in &ticks {
            let at = across.x(*x);
            s += &format!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#333\"/>\n",
                TOP + HEIGHT,
                TOP + HEIGHT + 4.0
            );
            let half = 3.4 * label.chars().count() as f64;
            if at - half > free {
                s += &format!(
                    "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                    TOP + HEIGHT + 16.0,
                    escaped(label)
                );
                free = at + half + 3.0;
            }
        }
        s += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444\">{}</text>\n",
            LEFT + plot / 2.0,
            TOP + HEIGHT + 31.0,
            escaped(&self.across)
        );
        for c in &self.curves {
            s += &curve(c, &axis, &across);
        }
        Panel { size: size(plot, 36.0), body: s }
    }
}

/// Places along the horizontal axis: linear, or logarithmic when they span much.
struct Across {
    low: f64,
    high: f64,
    logarithmic: bool,
    width: f64,
}

impl Across {
    fn over(ticks: &[(f64, &str)], width: f64) -> Self {
        let low = ticks.first().map_or(0.0, |t| t.0);
        let high = ticks.last().map_or(1.0, |t| t.0);
        // Doublings are evenly spaced; a first step of 1 to 6 threads shall not take half of the width.
        let doubling = ticks.windows(2).all(|w| w[1].0 >= 1.9 * w[0].0);
        let logarithmic = low > 0.0 && ticks.len() > 2 && (doubling || high / low >= 80.0);
        Self { low, high, logarithmic, width }
    }

    fn x(&self, v: f64) -> f64 {
        let of = |v: f64| if self.logarithmic { v.ln() } else { v };
        let span = of(self.high) - of(self.low);
        let share = if span > 0.0 { (of(v) - of(self.low)) / span } else { 0.5 };
        LEFT + 10.0 + self.width * share
    }
}

fn curve(c: &Curve, axis: &Axis, across: &Across) -> String {
    let places: Vec<String> =
        c.points.iter().map(|p| format!("{:.1},{:.1}", across.x(p.x), axis.y(p.value))).collect();
    let mut s = format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
        places.join(" "),
        c.colour
    );
    for p in &c.points {
        let (x, y) = (across.x(p.x), axis.y(p.value));
        s += &format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"{}><title>{}, {}: {}</title></circle>\n",
            c.colour,
            p.source.attributes(p.value),
            escaped(&c.name),
            escaped(&p.label),
            number(p.value)
        );
        if let Some(m) = p.mark {
            let y = axis.y(m);
            s += &format!(
                "<path class=\"published\" d=\"M{x:.1} {:.1} l6 6 l-6 6 l-6 -6 z\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"><title>{}, published: {}</title></path>\n",
                y - 6.0,
                c.colour,
                escaped(&c.name),
                number(m)
            );
        }
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(cell: &str) -> Source {
        Source { cell: cell.to_owned(), field: "mops" }
    }

    #[test]
    fn bars_carry_their_values_and_marks() {
        let bar = |name: &str, value, mark| Bar {
            name: name.to_owned(),
            colour: colour(0),
            value,
            mark,
            source: source("a \"b\" <c>"),
        };
        let chart = Bars {
            title: "search & more".into(),
            axis: "Mops".into(),
            bars: vec![bar("x", 10.0, Some(9.0)), bar("y", 5.0, None)],
        };
        let svg = chart.panel().svg();
        assert_eq!(svg.matches("class=\"bar\"").count(), 2);
        assert_eq!(svg.matches("class=\"published\"").count(), 1);
        assert!(svg.contains(
            "data-cell=\"a &quot;b&quot; &lt;c&gt;\" data-field=\"mops\" data-value=\"10\""
        ));
        assert!(svg.contains("search &amp; more") && svg.ends_with("</svg>\n"));
        assert!(Bars::default().panel().svg().contains("</svg>"));
    }

    #[test]
    fn curves_go_from_left_to_right() {
        let point = |x: f64, value| Point {
            x,
            label: x.to_string(),
            value,
            mark: (x == 72.0).then_some(50.0),
            source: source("c"),
        };
        let curve = Curve {
            name: "s".into(),
            colour: colour(1),
            points: vec![point(1.0, 1.0), point(36.0, 20.0), point(72.0, 48.0)],
        };
        let chart = Curves {
            title: "t".into(),
            axis: "Mops".into(),
            across: "threads".into(),
            curves: vec![curve],
        };
        let svg = chart.panel().svg();
        assert_eq!((svg.matches("<circle").count(), svg.matches("<polyline").count()), (3, 1));
        assert_eq!(svg.matches("class=\"published\"").count(), 1);
        let ticks: Vec<(f64, &str)> = [1.0, 2.0, 4.0, 8.0].map(|x| (x, "")).to_vec();
        let across = Across::over(&ticks, 300.0);
        let gaps: Vec<f64> =
            ticks.windows(2).map(|w| across.x(w[1].0) - across.x(w[0].0)).collect();
        assert!(
            gaps.iter().all(|g| (g - 100.0).abs() < 1e-9),
            "doublings are evenly spaced: {gaps:?}"
        );
        assert!(Curves::default().panel().svg().contains("</svg>"));
    }
}
