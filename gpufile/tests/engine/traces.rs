//! Tests of spans and events, which need the feature `tracing`.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gpufile::{Engine, File, IoRange};
use testkit::alone;
use testkit::bed::{Bed, pattern};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Level, Metadata, Subscriber};

/// A subscriber that notes spans when they begin and end, and events.
struct Notes {
    most: Level,
    last: AtomicU64,
    lines: Arc<Mutex<Vec<String>>>,
}

/// The fields of a span or an event, as a text.
#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Notes {
    fn note(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "gpufile" && *metadata.level() <= self.most
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        let id = 1 + self.last.fetch_add(1, Ordering::Relaxed);
        self.note(format!("{}{}", span.metadata().name(), fields.0));
        Id::from_u64(id)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.note(format!("event{}", fields.0));
    }

    fn try_close(&self, _: Id) -> bool {
        self.note("end".to_owned());
        true
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Returns what a subscriber of this level gets.
fn noted(most: Level, work: impl FnOnce()) -> Vec<String> {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    with_default(Notes { most, last: AtomicU64::new(0), lines: lines.clone() }, work);
    Arc::into_inner(lines).unwrap().into_inner().unwrap()
}

#[test]
fn each_call_is_a_span() {
    alone(|| {
        let bed = Bed::emulated();
        bed.file("data", &pattern(1 << 20));
        let engine = Engine::builder().driver(bed.driver.clone()).threads(2).build();
        let file = File::options().read(true).write(true).engine(&engine).open(bed.path("data")).unwrap();
        let word = file.route().kind().as_str();
        let mut device = bed.device.alloc(1 << 20).unwrap();
        let lines = |work: &mut dyn FnMut()| noted(Level::DEBUG, work);
        for len_bytes in [10, 4096, 1 << 20] {
            let read = format!("read bytes={len_bytes} ranges=1 route=");
            let of_host =
                lines(&mut || assert_eq!(file.read_at(&mut vec![0; len_bytes], 0).unwrap(), len_bytes));
            assert_eq!(of_host, [format!("{read}\"host\""), "end".to_owned()]);
            let of_future = lines(&mut || {
                let future = file.read_at_async(vec![0; len_bytes], 0);
                tracing::info!(target: "gpufile", "before its end");
                future.wait().0.unwrap();
            });
            let event = "event message=before its end".to_owned();
            assert_eq!(of_future, [format!("{read}\"host\""), event, "end".to_owned()]);
            let mut part = device.slice_mut(0..len_bytes);
            let of_device = lines(&mut || assert_eq!(file.read_at(&mut part, 0).unwrap(), len_bytes));
            assert_eq!(of_device, [format!("{read}\"{word}\""), "end".to_owned()]);
        }
        let ranges = [0, 1].map(|at| IoRange { file_offset: at << 19, buffer_offset: 0, len_bytes: 100 });
        let ranges = ranges.map(|range| IoRange { buffer_offset: range.file_offset as usize, ..range });
        let of_list = lines(&mut || file.write_many(&vec![7; 1 << 20], &ranges).unwrap());
        assert_eq!(of_list, ["write bytes=200 ranges=2 route=\"host\"", "end"]);
        // Those who want no spans get none.
        assert!(noted(Level::INFO, || file.read_exact_at(&mut [0; 10][..], 0).unwrap()).is_empty());
    });
}

#[test]
fn each_way_not_taken_is_an_event() {
    alone(|| {
        let bed = Bed::emulated();
        bed.file("data", &pattern(1 << 20));
        let engine = Engine::builder().driver(bed.driver.clone()).threads(2).build();
        let file = File::options().read(true).engine(&engine).open(bed.path("data")).unwrap();
        let events = noted(Level::INFO, || assert!(!file.route().to_string().is_empty()));
        let reasons: Vec<_> = engine.stats().fallbacks.into_keys().collect();
        assert!(!reasons.is_empty());
        for reason in reasons {
            let line = format!("event message=a better way was not taken reason={reason:?}");
            assert!(events.contains(&line), "{reason}: {events:?}");
        }
    });
}
