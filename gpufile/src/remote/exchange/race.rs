//! One try of a read. If an answer is late, a second request for the same bytes races with the first.

use std::time::Duration;

use super::super::batch::Batch;
use super::super::connection::limit::Limit;
use super::{Broken, Exchange, Terms};

/// The most time in which a connection for a second request is made. Meanwhile, nothing is received.
const MOST_CONNECTING: Duration = Duration::from_millis(250);

/// A failed try.
#[derive(Debug)]
pub(crate) struct Failed {
    pub broken: Broken,
    /// True if an answer was received whole.
    pub progressed: bool,
}

/// Receives the bytes of a batch that are missing. The limit is that of each answer.
pub(crate) fn receive(terms: &Terms<'_>, batch: &mut Batch, limit: Limit<'_>) -> Result<(), Failed> {
    let mut progressed = false;
    let received = receive_or_break(terms, batch, limit, &mut progressed);
    received.map_err(|broken| Failed { broken, progressed })
}

fn receive_or_break(
    terms: &Terms<'_>,
    batch: &mut Batch,
    mut limit: Limit<'_>,
    progressed: &mut bool,
) -> Result<(), Broken> {
    let mut first = Exchange::begin(terms, batch.place(), limit)?;
    let mut second: Option<Exchange<'_, '_>> = None;
    let (mut answers, mut had_second) = (0, false);
    while !batch.is_done() {
        limit.check()?;
        let received = first.send_more(batch, limit).and_then(|()| first.receive(batch));
        if first.answers() > answers {
            // The late answer has come, and so the next one has its own time.
            (answers, limit, second) = (first.answers(), limit.renewed(), None);
            (had_second, *progressed) = (false, true);
        }
        match (received, second.take()) {
            (Ok(_), None) if !had_second && first.is_late() && terms.times.permit_second() => {
                had_second = true;
                second = again(terms, batch, limit);
            }
            (Ok(_), None) => {}
            (Ok(_), Some(mut other)) => match other.receive(batch) {
                Ok(_) if other.is_answering() => (first, answers) = (other, 0),
                Ok(_) => second = Some(other),
                // The first may still come.
                Err(_) => {}
            },
            (Err(_), Some(other)) => (first, answers) = (other, 0),
            (Err(Broken::Refused(answer)), None) => {
                first.end_with(&answer, limit);
                return Err(Broken::Refused(answer));
            }
            (Err(broken), None) => return Err(broken),
        }
    }
    first.end();
    Ok(())
}

/// Asks for the missing bytes of a batch again. Returns `None` if that fails.
fn again<'t, 'o>(terms: &'t Terms<'o>, batch: &Batch, limit: Limit<'_>) -> Option<Exchange<'t, 'o>> {
    let soon = limit.at_most(MOST_CONNECTING);
    let mut other = Exchange::begin(terms, batch.place(), soon).ok()?;
    other.send_more(batch, soon).ok()?;
    Some(other)
}
