//! Bar charts as SVG.

use crate::results::{Cell, Results, file_stem};

/// Bars grouped by category.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// What the vertical axis shows, with its unit.
    pub axis: String,
    /// Groups along the horizontal axis.
    pub categories: Vec<String>,
    /// A bar per group each: name, and a value per group (none: no bar).
    pub series: Vec<(String, Vec<Option<f64>>)>,
}

/// Readable on white for most eyes (Okabe and Ito), then greys.
const COLOURS: [&str; 10] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#000000",
    "#777777", "#bbbbbb",
];
const LEFT: f64 = 70.0;
const TOP: f64 = 46.0;
const PLOT: f64 = 300.0;

/// Text for SVG and HTML.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A step between axis marks: 1, 2 or 5 times a power of ten, so that `high` takes four to ten of them.
pub(crate) fn step(high: f64) -> f64 {
    let raw = high / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= raw).unwrap_or(power * 10.0)
}

pub(crate) fn number(v: f64) -> String {
    let digits = if v >= 100.0 {
        0
    } else if v >= 10.0 {
        1
    } else if v >= 1.0 {
        2
    } else {
        3
    };
    let text = format!("{v:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

impl Chart {
    /// The SVG document.
    pub fn svg(&self) -> String {
        let bars = self.series.len().max(1) as f64;
        let bar = (220.0 / bars).clamp(10.0, 40.0);
        let group = bar * bars + 24.0;
        let plot_width = (group * self.categories.len().max(1) as f64).max(240.0);
        let longest = self.series.iter().map(|s| s.0.chars().count()).max().unwrap_or(0);
        let legend = 40.0 + 7.0 * longest as f64;
        let (width, height) = (LEFT + plot_width + legend, TOP + PLOT + 50.0);
        let high = self
            .series
            .iter()
            .flat_map(|s| s.1.iter().flatten())
            .copied()
            .filter(|v| v.is_finite())
            .fold(0.0, f64::max);
        let high = if high > 0.0 { high } else { 1.0 };
        let step = step(high);
        let top = (high / step).ceil() * step;
        let y = |v: f64| TOP + PLOT - PLOT * (v / top).clamp(0.0, 1.0);
        let mut s = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
            escaped(&self.title),
            escaped(&self.title)
        );
        let marks = (top / step).round() as usize;
        for i in 0..=marks {
            let v = step * i as f64;
            s += &format!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                LEFT + plot_width,
                y(v),
                y(v),
                LEFT - 6.0,
                y(v) + 4.0,
                number(v)
            );
        }
        s += &format!(
            "<text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            TOP + PLOT / 2.0,
            escaped(&self.axis)
        );
        for (i, category) in self.categories.iter().enumerate() {
            let x = LEFT + group * i as f64 + 12.0;
            s += &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                x + bar * bars / 2.0,
                TOP + PLOT + 20.0,
                escaped(category)
            );
            for (j, (name, values)) in self.series.iter().enumerate() {
                let Some(v) = values.get(i).copied().flatten().filter(|v| v.is_finite()) else {
                    continue;
                };
                let (bx, by) = (x + bar * j as f64, y(v));
                s += &format!(
                    "<rect x=\"{bx:.1}\" y=\"{by:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}, {}: {}</title></rect>\n",
                    bar - 2.0,
                    (TOP + PLOT - by).max(0.0),
                    COLOURS[j % COLOURS.len()],
                    escaped(name),
                    escaped(category),
                    number(v)
                );
                if bar >= 24.0 {
                    s += &format!(
                        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{}</text>\n",
                        bx + bar / 2.0 - 1.0,
                        by - 3.0,
                        number(v)
                    );
                }
            }
        }
        let base = TOP + PLOT;
        s += &format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{base}\" y2=\"{base}\" stroke=\"black\"/>\n<line x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{TOP}\" y2=\"{base}\" stroke=\"black\"/>\n",
            LEFT + plot_width
        );
        for (j, (name, _)) in self.series.iter().enumerate() {
            let (lx, ly) = (LEFT + plot_width + 12.0, TOP + 18.0 * j as f64);
            s += &format!(
                "<rect x=\"{lx:.1}\" y=\"{ly:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                COLOURS[j % COLOURS.len()],
                lx + 18.0,
                ly + 10.0,
                escaped(name)
            );
        }
        s += "</svg>\n";
        s
    }
}

/// What a chart takes from a cell.
type Figure = fn(&Cell) -> f64;

/// Charts of results, with file names: throughput, tail latency and round trips per distribution.
pub fn charts(r: &Results) -> Vec<(String, Chart)> {
    let all = r.distributions();
    let mut out = Vec::new();
    for d in &all {
        let cells: Vec<_> = r.cells.iter().filter(|c| c.distribution == *d).collect();
        let (mut categories, mut labels): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        for c in &cells {
            if !categories.contains(&c.workload) {
                categories.push(c.workload.clone());
            }
            if !labels.contains(&c.label()) {
                labels.push(c.label());
            }
        }
        let kinds: [(&str, &str, Figure); 3] = [
            ("throughput", "million operations per second", |c| c.mops),
            ("p99", "99th percentile latency, microseconds", |c| c.p99_ns as f64 / 1e3),
            ("round_trips", "round trips per operation", |c| c.round_trips),
        ];
        for (stem, axis, of) in kinds {
            let series = labels.iter().map(|label| {
                let values = categories.iter().map(|w| {
                    cells.iter().find(|c| c.workload == *w && c.label() == *label).map(|c| of(c))
                });
                (label.clone(), values.collect())
            });
            let chart = Chart {
                title: format!("{}, {d} (in-process memory)", r.experiment),
                axis: axis.to_owned(),
                categories: categories.clone(),
                series: series.collect(),
            };
            out.push((format!("{stem}_{}.svg", file_stem(d, &all)), chart));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        for (high, due) in [(1.0, 0.2), (55.0, 20.0), (0.07, 0.02), (4.9, 1.0), (1234.0, 500.0)] {
            assert!((step(high) - due).abs() < due * 1e-9, "{high}: {}", step(high));
        }
        assert_eq!(
            (number(0.25), number(50.0), number(1000.0)),
            ("0.25".into(), "50".into(), "1000".into())
        );
    }

    #[test]
    fn bars_have_their_heights_and_text_is_escaped() {
        let chart = Chart {
            title: "a<b & \"c\"".into(),
            axis: "Mops".into(),
            categories: vec!["x".into(), "y".into()],
            series: vec![
                ("s".into(), vec![Some(5.0), None]),
                ("t".into(), vec![Some(10.0), Some(f64::NAN)]),
            ],
        };
        let svg = chart.svg();
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a&lt;b &amp; &quot;c&quot;") && !svg.contains("NaN"));
        assert!(svg.contains("height=\"150.0\"") && svg.contains("height=\"300.0\""));
        assert_eq!(svg.matches("<rect").count(), 1 + 2 + 2, "background, bars, legend");
        assert!(Chart::default().svg().contains("</svg>"));
    }
}
