//! One page to look at: charts, tables, settings. Needs no network, and no other file.

use crate::figures::{FIGURES, series};
use crate::panel::{Panel, colour};
use crate::report_tables as tables;
use crate::results::{Cell, Results};
use crate::svg::escaped;

const STYLE: &str = "body{font-family:system-ui,'DejaVu Sans',sans-serif;margin:2em auto;max-width:96em;padding:0 1.5em;color:#1a1a1a;line-height:1.45}\
h1{margin-bottom:.2em}h2{margin-top:2em;border-bottom:2px solid #ddd;padding-bottom:.2em}h3{margin:1.4em 0 .3em}\
table{border-collapse:collapse;margin:.8em 0;font-size:.86em;font-variant-numeric:tabular-nums}\
td,th{padding:.25em .65em;border-bottom:1px solid #e2e2e2;text-align:right;white-space:nowrap}th{background:#f6f6f6;vertical-align:bottom}\
td.l,th.l{text-align:left}tr:hover td{background:#fafafa}.wide{overflow-x:auto}\
.note{background:#eef4fb;border-left:4px solid #0072b2;padding:.6em 1em}.bad{color:#b00020;font-weight:bold}.fine{color:#006b3c}\
pre{background:#f4f4f4;padding:1em;overflow:auto;font-size:.8em}.panels{display:flex;flex-wrap:wrap;gap:.4em 1em}\
.legend span{display:inline-block;margin-right:1.4em;white-space:nowrap}.swatch{display:inline-block;width:.8em;height:.8em;margin-right:.4em;vertical-align:-.05em}\
.line{display:inline-block;width:1.4em;height:0;border-top:3px solid #111;margin-right:.4em;vertical-align:.25em}details{margin:.6em 0}summary{cursor:pointer}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em;font-size:.9em}dt{color:#555}dd{margin:0}";

/// Says in the page itself what a browser made of it, for the test that renders it: how many charts have a size, and how many
/// pairs of their texts overlap.
const PROBE: &str = "<script>(function(){var d=document,b=d.body,n=0,o=0,box=function(e){return e.getBoundingClientRect()};\
d.querySelectorAll('svg').forEach(function(s){if(s.closest('details'))return;var r=box(s);if(r.width>0&&r.height>0)n++;var t=[].map.call(s.querySelectorAll('text'),box);\
for(var i=0;i<t.length;i++)for(var j=0;j<i;j++){var a=t[i],c=t[j];if(a.left+1<c.right&&c.left+1<a.right&&a.top+2<c.bottom&&c.top+2<a.bottom)o++}\
t.forEach(function(a){if(a.left<r.left-1||a.right>r.right+1||a.top<r.top-1||a.bottom>r.bottom+1)o++})});\
b.setAttribute('data-charts',n);b.setAttribute('data-overlaps',o);b.setAttribute('data-overflow',d.documentElement.scrollWidth>window.innerWidth+1?1:0)})()</script>\n";

/// The page.
pub fn html(r: &Results) -> String {
    let mut h = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>dmtree {0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n<p>{1}</p>\n<p class=\"note\">{2}</p>\n",
        escaped(&r.experiment),
        escaped(&r.description),
        escaped(&r.note)
    );
    if r.interrupted {
        h += "<p class=\"bad\">Interrupted: only finished cells are shown.</p>\n";
    }
    if let Some(f) = &r.failure {
        h += &format!("<p class=\"bad\">Ended early: {}</p>\n", escaped(f));
    }
    h += &tables::facts(r);
    h += &tables::verdict(r);
    let series = series(r);
    for d in r.distributions() {
        let cells: Vec<&Cell> = r.cells.iter().filter(|c| c.distribution == d).collect();
        h += &format!("<h2>{}</h2>\n", escaped(&d));
        h += &legend(r, &series);
        h += &charts(&cells, &series);
        h += &tables::cells(r, &cells);
    }
    if let Some(gains) = &r.gains {
        h += &gains.html();
    }
    h += &tables::steps(r);
    h += &tables::resources(r);
    h += &tables::memory(r);
    h += &tables::errors(r);
    h += &tables::settings(r);
    h + PROBE + "</body></html>\n"
}

fn legend(r: &Results, series: &[String]) -> String {
    let mut h = "<p class=\"legend\">".to_owned();
    for (i, name) in series.iter().enumerate() {
        h += &format!(
            "<span><i class=\"swatch\" style=\"background:{}\"></i>{}</span>",
            colour(i),
            escaped(name)
        );
    }
    if r.cells.iter().any(|c| c.published_figure.is_some()) {
        let shape = if r.cells.iter().any(|c| c.variant.is_some()) {
            "<b>&#9671;</b> published, in the colour of the system that stands for it"
        } else {
            "<i class=\"line\"></i>published"
        };
        h += &format!("<span>{shape}</span>");
    }
    h + "</p>\n"
}

/// Charts of cells: for each figure one per workload.
fn charts(cells: &[&Cell], series: &[String]) -> String {
    // Figures of few charts stand beside each other.
    let mut h = "<div class=\"panels\">\n".to_owned();
    for f in &FIGURES {
        h += &format!("<div><h3>{}</h3>\n<div class=\"panels\">\n", f.heading);
        h += &f.panels(cells, series).iter().map(Panel::svg).collect::<String>();
        h += "</div></div>\n";
    }
    h + "</div>\n"
}
