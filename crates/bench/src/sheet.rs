//! The charts of a report as files of their own: a figure under a distribution on one sheet, with what it is of and a legend.

use crate::figures::{FIGURES, series};
use crate::panel::{Panel, colour};
use crate::results::{Cell, Results, file_stem};
use crate::svg::escaped;

/// Where a row of charts or of names ends, pixels.
const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 14.0;
const LINE: f64 = 18.0;

/// Puts things of these widths in rows from the top: where each begins, and where the next row would.
fn rows(widths: impl Iterator<Item = f64>, top: f64, height: f64) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (MARGIN, top);
    let places = widths.map(|wide| {
        if x > MARGIN && x + wide > WIDTH {
            (x, y) = (MARGIN, y + height);
        }
        let place = (x, y);
        x += wide;
        place
    });
    (places.collect(), y + height)
}

fn words(text: &str, size: f64) -> f64 {
    // A wide sans serif takes about so much of its size for a character.
    0.62 * size * text.chars().count() as f64
}

/// One sheet.
fn sheet(title: &str, note: &str, names: &[(String, Option<&str>)], panels: &[Panel]) -> String {
    let widths: Vec<f64> = names.iter().map(|(name, _)| words(name, 12.0) + 36.0).collect();
    let (keys, below) = rows(widths.iter().copied(), MARGIN + 3.0 * LINE, LINE);
    let tall = panels.iter().map(|p| p.size.1).fold(0.0, f64::max) + 8.0;
    let (places, end) = rows(panels.iter().map(|p| p.size.0), below + 4.0, tall);
    let right = places.iter().zip(panels).map(|((x, _), p)| x + p.size.0);
    let wide = right
        .chain(keys.iter().zip(&widths).map(|((x, _), wide)| x + wide))
        .chain([MARGIN + words(title, 15.0), MARGIN + words(note, 11.0)])
        .fold(0.0, f64::max)
        + MARGIN;
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide:.0}\" height=\"{end:.0}\" viewBox=\"0 0 {wide:.0} {end:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{0}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{0}</text>\n<text x=\"{MARGIN}\" y=\"44\" font-size=\"11\" fill=\"#444\">{1}</text>\n",
        escaped(title),
        escaped(note)
    );
    for ((x, y), (name, colour)) in keys.iter().zip(names) {
        s += &match colour {
            Some(colour) => format!(
                "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n",
                y - 10.0
            ),
            None => format!(
                "<line x1=\"{x:.0}\" x2=\"{:.0}\" y1=\"{1:.0}\" y2=\"{1:.0}\" stroke=\"#111\" stroke-width=\"2.5\"/>\n",
                x + 16.0,
                y - 4.0
            ),
        };
        s += &format!("<text x=\"{:.0}\" y=\"{y:.0}\">{}</text>\n", x + 20.0, escaped(name));
    }
    for (panel, (x, y)) in panels.iter().zip(places) {
        s += &panel.at(x, y);
    }
    s + "</svg>\n"
}

/// The sheets of results, with file names: throughput, tail latency and round trips per distribution.
pub fn sheets(r: &Results) -> Vec<(String, String)> {
    let all = r.distributions();
    let series = series(r);
    let mut out = Vec::new();
    for d in &all {
        let cells: Vec<&Cell> = r.cells.iter().filter(|c| c.distribution == *d).collect();
        let compared = cells.iter().any(|c| c.published_figure.is_some());
        let curves = cells.iter().any(|c| c.variant.is_some());
        for f in &FIGURES {
            let systems =
                series.iter().enumerate().map(|(i, name)| (name.clone(), Some(colour(i))));
            let mut names: Vec<(String, Option<&str>)> = systems.collect();
            if compared && f.stem == "throughput" {
                names.push(match curves {
                    true => {
                        ("\u{25c7} published, in the colour of its system".to_owned(), Some("none"))
                    }
                    false => ("published".to_owned(), None),
                });
            }
            let title = format!("{}, {d}: {}", r.experiment, f.heading);
            let text = sheet(&title, &r.note, &names, &f.panels(&cells, &series));
            out.push((format!("{}_{}.svg", f.stem, file_stem(d, &all)), text));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel::{Bar, Bars, Source};

    #[test]
    fn what_does_not_fit_begins_a_row() {
        let (places, end) = rows([600.0, 600.0, 300.0, 2000.0].into_iter(), 10.0, 50.0);
        assert_eq!(places, [(14.0, 10.0), (14.0, 60.0), (614.0, 60.0), (14.0, 110.0)]);
        assert_eq!(end, 160.0);
    }

    #[test]
    fn a_sheet_has_all_panels_inside() {
        let bar = |value| Bar {
            name: "s".into(),
            colour: "#000",
            value,
            mark: Some(2.0),
            source: Source { cell: "c".into(), field: "mops" },
        };
        let panel = Bars { title: "a<b".into(), axis: "Mops".into(), bars: vec![bar(1.0)] }.panel();
        let names = [("s".to_owned(), Some("#000")), ("published".to_owned(), None)];
        let text = sheet("t & u", "simulated", &names, &vec![panel; 7]);
        assert_eq!(text.matches("<svg").count(), 8);
        assert_eq!(text.matches("</svg>").count(), 8);
        assert!(
            text.contains("t &amp; u") && text.contains("a&lt;b") && text.contains("simulated")
        );
        let number = |name: &str| -> f64 {
            let from = text.find(name).expect("an attribute") + name.len();
            text[from..].split('"').next().and_then(|n| n.parse().ok()).expect("a number")
        };
        let (wide, tall) = (number(" width=\""), number(" height=\""));
        for at in text.split("<svg x=\"").skip(1) {
            let n: Vec<f64> =
                at.split('"').step_by(2).take(4).filter_map(|n| n.parse().ok()).collect();
            assert!(n[0] + n[2] <= wide && n[1] + n[3] <= tall, "{n:?} in {wide} x {tall}");
        }
    }
}
