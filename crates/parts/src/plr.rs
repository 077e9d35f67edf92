//! The optimal piecewise-linear fit of ascending keys to their ordinals, in one pass.
//!
//! A segment is a run of keys with a line that predicts the ordinal of each within a bound. It ends
//! only where no line fits the next key as well, so no fit has fewer segments. The fit keeps the
//! two extreme lines that pass within the bound of all points, and those points of the two hulls
//! that a later extreme line can touch. It compares slopes as fractions of integers, exactly.
//!
//! The line itself is a product of floats. So when a segment ends, every key is checked against the
//! prediction that readers use, and the segment ends before a key that is outside.
//!
//! Invariants of a [`Segment`]: [`Line::predict`] is monotone in the key. For trained keys it lies
//! within the bound of the ordinal. So for a key between two trained ones the ordinal of the larger
//! one lies between the prediction less the bound and the prediction plus the bound and one.
//!
//! The module posts no verbs.

use std::cmp::Ordering;

use dmtree_fabric::{Error, Result};

/// Most points of a segment. It bounds what a fit holds in memory; a longer segment would save no
/// memory that counts beside these keys.
pub const MOST_POINTS: u32 = 1 << 16;

/// Predicts positions in a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Positions per unit of the key: zero at least.
    pub slope: f64,
    /// The position of the segment's first key.
    pub intercept: f64,
}

impl Line {
    /// The position, from 0 to `points - 1`, of a key that lies `beyond` the first key of a segment
    /// with so many points. (A position of a key before the first one is that of the first one.)
    ///
    /// It is monotone in `beyond`: each step, the conversion, the product, the sum and the floor,
    /// keeps the order of two operands whatever it rounds.
    pub fn predict(&self, beyond: u128, points: u32) -> u32 {
        let position = (self.slope * beyond as f64 + self.intercept + 0.5).floor();
        // Anything that is no number becomes 0, which is in range.
        (position as u32).min(points.saturating_sub(1))
    }
}

/// A run of keys, and the line through them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Its first key.
    pub first: u128,
    /// Its last key.
    pub last: u128,
    /// The ordinal of its first key.
    pub ordinal: u32,
    /// Its number of keys.
    pub points: u32,
    /// The line.
    pub line: Line,
}

impl Segment {
    /// The predicted position of a key in this segment, from 0 to `points - 1`.
    pub fn predict(&self, key: u128) -> u32 {
        self.line.predict(key.saturating_sub(self.first), self.points)
    }
}

/// A point of the plane: a key as its distance from the first one of the segment.
#[derive(Clone, Copy, Debug)]
struct Point {
    x: u128,
    y: i64,
}

/// The line through two points, the first of which is further left.
#[derive(Clone, Copy, Debug)]
struct Extreme(Point, Point);

/// `a * b`, in two limbs: the higher one first.
fn product(a: u128, b: u64) -> (u128, u128) {
    let (high, low) = ((a >> 64) * u128::from(b), (a & u128::from(u64::MAX)) * u128::from(b));
    let (sum, carry) = low.overflowing_add(high << 64);
    ((high >> 64) + u128::from(carry), sum)
}

impl Extreme {
    fn dx(&self) -> u128 {
        self.1.x - self.0.x
    }

    fn dy(&self) -> i64 {
        self.1.y - self.0.y
    }

    /// Compares the slopes.
    fn steepness(&self, other: &Self) -> Ordering {
        let (a, b) = (self.dy(), other.dy());
        let products =
            || product(other.dx(), a.unsigned_abs()).cmp(&product(self.dx(), b.unsigned_abs()));
        match (a < 0, b < 0) {
            (false, false) => products(),
            (true, true) => products().reverse(),
            (is_less, _) => {
                if is_less {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
        }
    }

    /// Where a point that is further right lies: `Less` below the line.
    fn side(&self, p: Point) -> Ordering {
        Extreme(self.0, p).steepness(self)
    }

    fn slope(&self) -> f64 {
        self.dy() as f64 / self.dx() as f64
    }

    /// The height at the first key of the segment.
    fn intercept(&self) -> f64 {
        self.0.y as f64 - self.slope() * self.0.x as f64
    }
}

/// Points of a hull, from left to right, that an extreme line can still touch.
#[derive(Debug, Default)]
struct Hull {
    points: Vec<Point>,
    from: usize,
}

impl Hull {
    /// The line to a point from the hull's point that makes it least (`Less`) or most steep. Points
    /// before that one are dropped: no later extreme line touches them.
    fn tangent(&mut self, to: Point, wanted: Ordering) -> Extreme {
        let line = |i: usize| Extreme(self.points[i], to);
        let mut at = self.from;
        while at + 1 < self.points.len() && line(at + 1).steepness(&line(at)) != wanted.reverse() {
            at += 1;
        }
        self.from = at;
        line(at)
    }

    /// Adds a point; the hull turns only to the right (`Less`) or to the left.
    fn push(&mut self, p: Point, turn: Ordering) {
        while let [.., a, b] = self.points[self.from..]
            && Extreme(b, p).steepness(&Extreme(a, b)) != turn
        {
            self.points.pop();
        }
        self.points.push(p);
    }
}

/// The segment that is not ended yet.
#[derive(Debug, Default)]
struct Open {
    keys: Vec<u128>,
    /// The lines with the smallest and the largest slope; none for a single point.
    extremes: Option<(Extreme, Extreme)>,
    /// The hulls of the highest points that the line may pass, and of the lowest.
    high: Hull,
    low: Hull,
}

impl Open {
    /// Adds a key if a line fits it and those before.
    fn add(&mut self, key: u128, error: i64) -> bool {
        let first = self.keys.first().copied().unwrap_or(key);
        let (x, y) = (key - first, self.keys.len() as i64);
        let (high, low) = (Point { x, y: y + error }, Point { x, y: y - error });
        let Some((least, most)) = self.extremes else {
            if let (Some(a), Some(b)) = (self.high.points.first(), self.low.points.first()) {
                self.extremes = Some((Extreme(*a, low), Extreme(*b, high)));
            }
            return self.append(key, (high, true), (low, true));
        };
        if least.side(high) == Ordering::Less || most.side(low) == Ordering::Greater {
            return false;
        }
        // A point that no extreme line has to avoid is on no hull that counts.
        let (lowers, raises) =
            (most.side(high) == Ordering::Less, least.side(low) == Ordering::Greater);
        let most = if lowers { self.low.tangent(high, Ordering::Less) } else { most };
        let least = if raises { self.high.tangent(low, Ordering::Greater) } else { least };
        self.extremes = Some((least, most));
        self.append(key, (high, lowers), (low, raises))
    }

    fn append(&mut self, key: u128, high: (Point, bool), low: (Point, bool)) -> bool {
        self.keys.push(key);
        if high.1 {
            self.high.push(high.0, Ordering::Greater);
        }
        if low.1 {
            self.low.push(low.0, Ordering::Less);
        }
        true
    }

    /// A line within the bound of all points: between the extreme ones, through the point in which
    /// they meet. Ordinals ascend, so the steepest line ascends, and where the mean of the two
    /// descends a level line is as good.
    fn line(&self) -> Line {
        let Some((least, most)) = self.extremes else {
            return Line { slope: 0.0, intercept: 0.0 };
        };
        let (low, high) = (least.slope(), most.slope());
        let share = if low + high >= 0.0 { 0.5 } else { -low / (high - low) };
        let between = |a: f64, b: f64| a + (b - a) * share;
        Line {
            slope: between(low, high).max(0.0),
            intercept: between(least.intercept(), most.intercept()),
        }
    }
}

/// How many of the first keys a line predicts within the bound.
fn within(keys: &[u128], line: Line, error: u32) -> usize {
    let is_outside = |(i, key): (usize, &u128)| {
        let predicted = line.predict(key - keys[0], keys.len() as u32);
        predicted.abs_diff(i as u32) > error
    };
    keys.iter().enumerate().position(|(i, key)| is_outside((i, key))).unwrap_or(keys.len())
}

/// A fit in progress: keys go in, in ascending order, and segments come out.
#[derive(Debug)]
pub struct Fit {
    error: u32,
    open: Open,
    /// The ordinal of the next key.
    next: u32,
    last: Option<u128>,
}

impl Fit {
    /// A fit that predicts the ordinals of keys with this error at most, counted from `ordinal`.
    pub fn new(error: u32, ordinal: u32) -> Self {
        Self { error, open: Open::default(), next: ordinal, last: None }
    }

    /// Adds a key; what ends before it goes to `out`.
    ///
    /// # Errors
    /// `InvalidArgument` for a key that is not above the last one, and for more keys than ordinals.
    pub fn push(&mut self, key: u128, out: &mut Vec<Segment>) -> Result<()> {
        if self.last.is_some_and(|last| key <= last) {
            return Err(Error::invalid(format!("key {key} does not ascend")));
        }
        let next = self.next.checked_add(1);
        let next = next.ok_or_else(|| Error::invalid("a fit of more than 2^32 keys"))?;
        let is_full = self.open.keys.len() >= MOST_POINTS as usize;
        if is_full || !self.open.add(key, self.error.into()) {
            self.end_segment(out);
            self.open.add(key, self.error.into());
        }
        (self.next, self.last) = (next, Some(key));
        Ok(())
    }

    /// Ends the segment of the last key: the next key begins another. At the end of all keys, too.
    pub fn end_segment(&mut self, out: &mut Vec<Segment>) {
        let mut open = std::mem::take(&mut self.open);
        while let [first, ..] = open.keys[..] {
            let line = open.line();
            // The first key is always inside: the height of the line there is within the bound.
            let points = within(&open.keys, line, self.error).max(1);
            let ordinal = self.next - open.keys.len() as u32;
            let last = open.keys[points - 1];
            out.push(Segment { first, last, ordinal, points: points as u32, line });
            // What a line fits, a line fits without its first points.
            let rest = open.keys.split_off(points);
            open = Open::default();
            rest.into_iter().for_each(|key| _ = open.add(key, self.error.into()));
        }
    }
}

#[cfg(test)]
mod tests;
