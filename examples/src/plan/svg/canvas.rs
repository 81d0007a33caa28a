//! Writes the few shapes of SVG that the drawing consists of.

use std::fmt::Write;

/// A document under construction.
pub(super) struct Canvas(String);

/// A rectangle, by its upper left corner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rectangle {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// The point of a text that is at the given position.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Self {
        let mut canvas = Self(String::new());
        canvas.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\" fill=\"#222\">"
        ));
        canvas.add(format_args!("<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"));
        canvas
    }

    /// Draws a rectangle with a text in its middle. A text that is too long is drawn smaller.
    pub(super) fn rectangle(&mut self, place: Rectangle, fill: &str, text: &str) {
        let Rectangle { x, y, width, height } = place;
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"3\" fill=\"{fill}\" \
             stroke=\"#667\"/>"
        ));
        if !text.is_empty() {
            let size = (width / text.len() as f64 * 1.7).clamp(6.0, 13.0);
            self.text(x + width / 2.0, y + height / 2.0 + 0.35 * size, size, Anchor::Middle, text);
        }
    }

    /// Draws a link. The more it is loaded, the thicker it is.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), share: f64) {
        let width = 1.5 + 3.0 * share.clamp(0.0, 1.0);
        self.add(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" stroke-width=\"{width:.1}\"/>",
            from.0,
            from.1,
            to.0,
            to.1,
            load_color(share)
        ));
    }

    pub(super) fn text(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    pub(super) fn finish(mut self) -> String {
        self.add(format_args!("</svg>"));
        self.0
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{element}");
    }
}

/// The colour of a load: from grey-blue over orange to dark red.
pub(super) fn load_color(share: f64) -> String {
    let stops = [[190.0, 205.0, 220.0], [240.0, 160.0, 50.0], [165.0, 0.0, 20.0]];
    let place = 2.0 * share.clamp(0.0, 1.0);
    let (from, to, part) = if place < 1.0 { (stops[0], stops[1], place) } else { (stops[1], stops[2], place - 1.0) };
    let [red, green, blue] = std::array::from_fn(|index| from[index] + part * (to[index] - from[index]));
    format!("rgb({red:.0},{green:.0},{blue:.0})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_from_blue_to_red() {
        assert_eq!(load_color(-1.0), "rgb(190,205,220)");
        assert_eq!(load_color(0.5), "rgb(240,160,50)");
        assert_eq!(load_color(f64::INFINITY), "rgb(165,0,20)");
    }

    #[test]
    fn texts_are_escaped() {
        let mut canvas = Canvas::new(1.0, 1.0);
        canvas.text(0.0, 0.0, 1.0, Anchor::Middle, "a < b & c");
        assert!(canvas.finish().contains("a &lt; b &amp; c"));
    }
}
