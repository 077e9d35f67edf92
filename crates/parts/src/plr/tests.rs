use super::*;
use proptest::prelude::*;

fn fitted(keys: &[u128], error: u32) -> Vec<Segment> {
    let (mut fit, mut out) = (Fit::new(error, 0), Vec::new());
    keys.iter().for_each(|key| fit.push(*key, &mut out).expect("ascending"));
    fit.end_segment(&mut out);
    out
}

/// Whether any line passes within the bound of all points: a slope is possible if it lies between
/// those of all pairs of points.
fn some_line_fits(keys: &[u128], error: u32) -> bool {
    let at = |i: usize, up: i64| Point { x: keys[i] - keys[0], y: i as i64 + up };
    let (error, mut bounds) = (i64::from(error), None::<(Extreme, Extreme)>);
    for j in 1..keys.len() {
        for i in 0..j {
            let least = Extreme(at(i, error), at(j, -error));
            let most = Extreme(at(i, -error), at(j, error));
            let (low, high) = bounds.unwrap_or((least, most));
            let low = if least.steepness(&low).is_gt() { least } else { low };
            let high = if most.steepness(&high).is_lt() { most } else { high };
            bounds = Some((low, high));
        }
    }
    bounds.is_none_or(|(low, high)| low.steepness(&high).is_le())
}

/// Gaps of all magnitudes, and the whole width of a key.
fn key_sets() -> impl Strategy<Value = Vec<u128>> {
    let gap = (0u32..110, 1u128..1 << 16, any::<bool>());
    let gaps = prop::collection::vec(gap, 1..120);
    (gaps, 0u32..111, any::<bool>()).prop_map(|(gaps, most, from_end)| {
        let mut keys = vec![if most < 20 { 1 << 100 } else { 0u128 }];
        for (bits, gap, is_one) in gaps {
            let gap = if is_one { 1 } else { gap << (bits.min(most)) };
            let Some(next) = keys[keys.len() - 1].checked_add(gap) else { break };
            keys.push(next);
        }
        if from_end {
            keys.iter_mut().for_each(|key| *key = u128::MAX - *key);
            keys.reverse();
        }
        keys
    })
}

proptest! {
    #[test]
    fn segments_cover_all_keys_in_order(keys in key_sets(), error in 0u32..40) {
        let segments = fitted(&keys, error);
        let mut next = 0;
        for s in &segments {
            prop_assert_eq!(s.ordinal as usize, next);
            prop_assert_eq!(s.first, keys[next]);
            next += s.points as usize;
            prop_assert_eq!(s.last, keys[next - 1]);
        }
        prop_assert_eq!(next, keys.len());
    }

    #[test]
    fn every_key_is_predicted_within_the_bound(keys in key_sets(), error in 0u32..40) {
        for s in fitted(&keys, error) {
            for i in 0..s.points {
                let predicted = s.predict(keys[(s.ordinal + i) as usize]);
                prop_assert!(predicted.abs_diff(i) <= error, "{predicted} for {i}");
            }
        }
    }

    /// For any key, trained or not, the number of smaller keys of its segment lies where the heads
    /// of readers look: from the bound below the prediction to the bound and one above.
    #[test]
    fn the_rank_of_any_key_is_near(keys in key_sets(), error in 0u32..40, probes: Vec<u128>) {
        for s in fitted(&keys, error) {
            let own = &keys[s.ordinal as usize..(s.ordinal + s.points) as usize];
            let around = own.iter().flat_map(|key| [key.saturating_sub(1), key.saturating_add(1)]);
            for key in around.chain(probes.iter().copied()) {
                let rank = own.partition_point(|k| *k < key) as u32;
                let predicted = s.predict(key);
                prop_assert!(predicted < s.points);
                prop_assert!(predicted <= rank + error && rank <= predicted + error + 1);
            }
        }
    }

    #[test]
    fn predictions_are_monotone(
        slope in 0f64..2.0, scale in 0i32..126, intercept in -40f64..40.0, points: u32,
        a: u128, b: u128,
    ) {
        let line = Line { slope: slope / 2f64.powi(scale), intercept };
        let (a, b) = (a.min(b), a.max(b));
        prop_assert!(line.predict(a, points) <= line.predict(b, points));
        prop_assert!(line.predict(a, points) <= line.predict(a.saturating_add(1), points));
    }

    /// A segment has a line, and none that fits its next key as well.
    #[test]
    fn segments_are_as_long_as_can_be(keys in key_sets(), error in 0u32..12) {
        let segments = fitted(&keys, error);
        for s in &segments {
            let (from, to) = (s.ordinal as usize, (s.ordinal + s.points) as usize);
            prop_assert!(some_line_fits(&keys[from..to], error));
            if to < keys.len() {
                prop_assert!(!some_line_fits(&keys[from..=to], error), "{s:?} ends too early");
            }
        }
    }

    #[test]
    fn products_have_two_limbs(a: u128, b: u64, c in 1u64..) {
        let (high, low) = product(a, b);
        // Long division by a single limb gives the factor back.
        if b > 0 && high == 0 {
            prop_assert_eq!(low / u128::from(b), a);
        }
        let (a, c) = (a >> 64, u128::from(c));
        prop_assert_eq!(product(a, c as u64), (0, a * c));
        prop_assert_eq!(product(a << 64, c as u64), ((a * c) >> 64, (a * c) << 64));
    }
}

/// Uniform keys: gaps are exponential.
fn uniform(n: usize) -> impl Iterator<Item = u128> {
    let mut state = 1u64;
    let mut last = 0u128;
    (0..n).map(move |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = crate::hash::check64(&state.to_le_bytes(), 7) >> 11;
        let unit = (x as f64 + 1.0) / (1u64 << 53) as f64;
        last += 1 + (-unit.ln() * 1e12) as u128;
        last
    })
}

/// About four times the square of the bound: what the published caches agree with.
#[test]
fn keys_of_a_segment_of_uniform_keys() {
    let keys: Vec<u128> = uniform(3_000_000).collect();
    for (error, published) in [(3, 47.6), (7, 209.0), (15, 885.0), (31, 3540.0)] {
        let mean = keys.len() as f64 / fitted(&keys, error).len() as f64;
        assert!((mean / published - 1.0).abs() < 0.05, "{mean} keys at {error}");
    }
}

#[test]
fn a_segment_ends_when_it_is_told_and_when_it_is_full() {
    let (mut fit, mut out) = (Fit::new(3, 100), Vec::new());
    for key in 0..10 {
        fit.push(key, &mut out).expect("ascending");
        if key == 4 {
            fit.end_segment(&mut out);
        }
    }
    fit.end_segment(&mut out);
    fit.end_segment(&mut out);
    let parts: Vec<_> = out.iter().map(|s| (s.ordinal, s.points, s.first, s.last)).collect();
    assert_eq!(parts, [(100, 5, 0, 4), (105, 5, 5, 9)]);
    let dense: Vec<u128> = (0..200_000).collect();
    let points: Vec<u32> = fitted(&dense, 0).iter().map(|s| s.points).collect();
    assert_eq!(points, [MOST_POINTS, MOST_POINTS, MOST_POINTS, 200_000 - 3 * MOST_POINTS]);
}

#[test]
fn keys_ascend() {
    let (mut fit, mut out) = (Fit::new(3, 0), Vec::new());
    fit.push(7, &mut out).expect("the first");
    for key in [7, 6] {
        let e = fit.push(key, &mut out).expect_err("refused").to_string();
        assert!(e.contains(&format!("key {key} does not ascend")), "{e}");
    }
    let mut last = Fit::new(3, u32::MAX);
    assert!(last.push(1, &mut out).is_err());
}

/// Floats that miss a key end the segment before it.
#[test]
fn a_key_outside_ends_the_segment() {
    let keys: Vec<u128> = (0..100).map(|i| i * 10).collect();
    let line = |slope| Line { slope, intercept: 0.0 };
    assert_eq!(within(&keys, line(0.1), 0), 100);
    // Position 20 is predicted as 24, position 21 as 25.2, and so on: 3 off at position 13.
    assert_eq!(within(&keys, line(0.12), 2), 13);
    assert_eq!(within(&keys, line(f64::NAN), 2), 3);
}
