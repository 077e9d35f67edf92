//! Charts as PDF, with an embedded font, so that they look alike everywhere.

use std::sync::Arc;

use svg2pdf::usvg::{Options, Tree, fontdb::Database};
use svg2pdf::{ConversionOptions, PageOptions};

use crate::failure::{Failure, Result};

/// Its licence stands beside it.
const FONT: &[u8] = include_bytes!("../fonts/DejaVuSans.ttf");
const FAMILY: &str = "DejaVu Sans";

/// A chart's SVG as a PDF of one page, which fits it.
///
/// # Errors
/// An SVG that cannot be read.
pub fn pdf(svg: &str) -> Result<Vec<u8>> {
    let mut fonts = Database::new();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family(FAMILY);
    let options =
        Options { fontdb: Arc::new(fonts), font_family: FAMILY.to_owned(), ..Options::default() };
    let failed = |e: &dyn std::fmt::Display| Failure::violation(format!("a chart as PDF: {e}"));
    let tree = Tree::from_str(svg, &options).map_err(|e| failed(&e))?;
    svg2pdf::to_pdf(&tree, ConversionOptions::default(), PageOptions::default())
        .map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel::Bars;

    #[test]
    fn a_chart_becomes_a_page_with_the_font_inside() {
        let chart = Bars { title: "search".into(), axis: "Mops".into(), bars: Vec::new() };
        let bytes = pdf(&chart.panel().svg()).unwrap();
        assert!(bytes.starts_with(b"%PDF-"));
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("DejaVuSans") && text.contains("/MediaBox"));
        assert!(pdf("<svg").is_err());
    }
}
