//! Chunks handed out at random steps, each compared with the rules.

use super::super::plan::schedule::Order;
use super::hand_out::HandOut;
use crate::memory::Place;

fn check(chunks: usize, order: Order, seed: u64) {
    let mut random = seed;
    let mut below = |most: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % most
    };
    let mut hand_out = HandOut::new(Place::Host, 0..chunks, order);
    let (mut out, mut taken) = (Vec::new(), 0);
    let last_alone = matches!(order, Order::LastAlone { .. }) && chunks > 1;
    let is_serial = order == Order::Serial;
    while !hand_out.is_done() {
        let most = match order {
            Order::Any { at_once } | Order::LastAlone { at_once } => at_once.unwrap_or(usize::MAX),
            Order::Serial => 1,
        };
        let may_be_next = taken < chunks && !(last_alone && taken + 1 == chunks && !out.is_empty());
        let expected = (may_be_next && out.len() < most).then_some(taken);
        assert_eq!(hand_out.is_ready(), expected.is_some());
        match below(3) {
            0 | 1 if expected.is_some() => {
                assert_eq!(hand_out.claim(), expected);
                out.push(taken);
                taken += 1;
            }
            0 if out.len() == 1 && is_serial => {
                let follows = may_be_next.then_some(taken);
                assert_eq!(hand_out.claim_after(out[0] + 1), None, "not the chunk before");
                assert_eq!(hand_out.claim_after(out[0]), follows);
                if follows.is_some() {
                    out.push(taken);
                    taken += 1;
                }
            }
            _ if out.is_empty() => assert_eq!(hand_out.claim_after(0), None),
            _ => {
                // The worker that has two chunks of a serial job ends the first one first.
                out.remove(if is_serial { 0 } else { below(out.len()) });
                // Workers that found no chunk before must be notified, once.
                assert_eq!(hand_out.complete(), expected.is_none() && hand_out.is_ready());
            }
        }
        assert_eq!(hand_out.next(), (taken < chunks).then_some(taken));
        assert_eq!(hand_out.all_were_out(), taken == chunks);
    }
    assert!(taken == chunks && out.is_empty());
}

#[test]
fn chunks_are_handed_out_by_the_rules() {
    for chunks in 0..6 {
        let limits = [None, Some(1), Some(2), Some(3)];
        let any = limits.map(|at_once| Order::Any { at_once });
        let last_alone = limits.map(|at_once| Order::LastAlone { at_once });
        for order in any.into_iter().chain(last_alone).chain([Order::Serial]) {
            (0..100).for_each(|seed| check(chunks, order, seed));
        }
    }
}

#[test]
fn a_stopped_job_hands_out_nothing() {
    let mut hand_out = HandOut::new(Place::Host, 0..3, Order::LastAlone { at_once: None });
    assert_eq!(hand_out.claim(), Some(0));
    hand_out.stop();
    assert_eq!((hand_out.claim(), hand_out.is_done()), (None, false));
    assert!(!hand_out.complete() && hand_out.is_done());
}
