//! The engine with its own jobs, lanes, rings and streams, on the stand-ins for CUDA and files.

mod device;
mod plan;
#[path = "../../src/engine/relay/mod.rs"]
mod relay;
mod work;

use std::sync::Arc;

pub(crate) use device::copies::wait_by_looking;
pub use plan::refusals::Refusals;
pub use plan::schedule::{Order, Schedule};
pub use plan::transfer::{Choices, Growth, IoRange, Transfer};
pub(crate) use relay::OwnedRelay;
pub(crate) use work::job::Job;
pub(crate) use work::workers::Workers;

use crate::gpu::bounce::Bounce;
use crate::gpu::gpus::Gpus;
use crate::memory::Place;
use crate::stand_ins::sync;
use crate::world::{self, Kind};
use relay::thread::RelayThread;
use work::lanes::Lanes;

/// Waits until something has ended, or gives up where the model plans that. Returns whether it has ended.
pub fn ends_soon(has_ended: impl Fn() -> bool) -> bool {
    if world::happens(world::Fault::GivesUp) { has_ended() } else { device::copies::ends_soon(has_ended) }
}

#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    relays: Option<Arc<RelayThread>>,
    workers: Workers,
    lanes: Arc<Lanes>,
    gpus: Arc<Gpus>,
}

impl Engine {
    pub fn new(threads: usize, lanes: usize, bounce_bytes: usize) -> Self {
        let memory_bytes = 2 * lanes * Bounce::bytes_for(bounce_bytes);
        let gpus = Arc::<Gpus>::default();
        let lanes = Arc::new(Lanes::new(gpus.clone(), bounce_bytes, memory_bytes));
        let workers = Workers::new(threads, lanes.clone());
        Self(Arc::new(Inner { relays: None, workers, lanes, gpus }))
    }

    /// Returns an engine with relays, for which streams can wait.
    pub fn with_relays(threads: usize, lanes: usize, bounce_bytes: usize) -> Self {
        let mut engine = Self::new(threads, lanes, bounce_bytes);
        let inner = Arc::get_mut(&mut engine.0).expect("just made");
        inner.relays = Some(RelayThread::new(threads, inner.workers.lanes_for_relays()).unwrap());
        engine
    }

    pub fn relays(&self) -> Option<&Arc<RelayThread>> {
        self.0.relays.as_ref()
    }

    pub fn workers(&self) -> &Workers {
        &self.0.workers
    }

    pub fn gpus(&self) -> &Gpus {
        &self.0.gpus
    }

    pub fn release_buffers(&self) {
        self.0.workers.release_buffers();
        if let Some(relays) = self.relays() {
            relays.release_buffers();
        }
    }

    /// Waits until all lanes are returned. Then all pinned memory is idle, and none is left after it is
    /// freed.
    pub fn assert_idle(&self) {
        let lanes = &self.0.lanes;
        for place in [Place::Host, crate::GPU] {
            let taken: Vec<_> = (0..lanes.limit()).map(|_| lanes.take(place).unwrap()).collect();
            taken.into_iter().for_each(|lane| lanes.put(lane));
        }
        self.release_buffers();
        assert_eq!(world::live(Kind::Pinned), 0, "pinned memory is in use");
    }
}
