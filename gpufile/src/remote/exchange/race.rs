//! One try of a read. If an answer is late, a second request for the same bytes races with the first.

use std::time::Duration;

use super::super::batch::Batch;
use super::super::connection::limit::Limit;
use super::{Broken, Exchange, Terms};

/// The most time for making a connection for a second request, while nothing is received.
const MOST_CONNECTING: Duration = Duration::from_millis(250);

/// Receives the bytes of a batch that are missing.
pub(crate) fn receive(terms: &Terms<'_>, batch: &mut Batch, limit: &mut Limit<'_>) -> Result<(), Broken> {
    if batch.is_done() {
        return Ok(());
    }
    let mut first = Exchange::begin(terms, batch.place(), *limit)?;
    let mut second: Option<Exchange<'_, '_>> = None;
    let (mut answers, mut had_second) = (0, false);
    while !batch.is_done() || first.is_answering() {
        limit.check()?;
        let (before, fulfilled) = (batch.place().before, first.fulfilled());
        let received = first.send_more(batch, *limit).and_then(|()| first.receive(batch));
        limit.note(batch.place().before - before, first.fulfilled() > fulfilled);
        if first.answers() > answers {
            // The late answer has come.
            (answers, second, had_second) = (first.answers(), None, false);
        }
        match (received, second.take()) {
            (Ok(_), None)
                if !had_second && !batch.is_done() && first.is_late() && terms.times.permit_second() =>
            {
                had_second = true;
                second = again(terms, batch, *limit);
            }
            (Ok(_), None) => {}
            (Ok(_), Some(mut other)) => match other.receive(batch) {
                Ok(_) if other.is_answering() => (first, answers) = (other, 0),
                Ok(_) => second = Some(other),
                // The first may still come.
                Err(_) => {}
            },
            (Err(_), Some(other)) => (first, answers) = (other, 0),
            (Err(Broken::Refused(answer, _)), None) => {
                let body = first.end_with(&answer, *limit);
                return Err(Broken::Refused(answer, body));
            }
            (Err(broken), None) => return Err(broken),
        }
    }
    first.end();
    Ok(())
}

/// Asks for the missing bytes again. Returns `None` if that fails.
fn again<'t, 'o>(terms: &'t Terms<'o>, batch: &Batch, limit: Limit<'_>) -> Option<Exchange<'t, 'o>> {
    let soon = limit.at_most(MOST_CONNECTING);
    let mut other = Exchange::begin(terms, batch.place(), soon).ok()?;
    other.send_more(batch, soon).ok()?;
    Some(other)
}
