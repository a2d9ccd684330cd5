//! An actor: one of the threads that read and write.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use gpufile::cuda::Stream;
use gpufile::{Engine, File};
use testkit::memory::{Kind, Memory};

use super::content::Random;
use super::writes::Copies;
use super::{Counts, Result, Scene, Stage, memory, models, reads, writes};

pub struct Actor<'a> {
    pub stage: &'a Stage,
    pub number: u64,
    pub round: u64,
    pub counts: Counts,
    /// One buffer of each kind, reused because an allocation waits for the GPU and would keep the actors
    /// apart.
    buffers: Vec<(Kind, Memory)>,
    pub stream: Option<Stream>,
    pub copies: Copies,
}

/// The lengths of the buffers, in bytes.
const DEVICE_LEN: usize = 128_000_019;
const HOST_LEN: usize = 18_000_057;

impl<'a> Actor<'a> {
    pub fn new(stage: &'a Stage, number: u64) -> Result<Self> {
        let device = stage.device.as_ref();
        let mut buffers = Vec::new();
        for (kind, len) in [(Kind::Device, DEVICE_LEN), (Kind::Pinned, HOST_LEN), (Kind::Host, HOST_LEN)] {
            if device.is_some() || kind == Kind::Host {
                buffers.push((kind, memory::new(device, kind, len)?));
            }
        }
        let stream = device.map(|device| device.stream()).transpose()?;
        let copies = Copies::new(stage, number)?;
        Ok(Self { stage, number, round: 0, counts: Counts::new(), buffers, stream, copies })
    }

    pub fn play(&mut self) -> Result {
        while Instant::now() < self.stage.end && !self.stage.is_over.load(Ordering::Relaxed) {
            let mut random = Random::new(self.stage.seed, self.number, self.round);
            let scene = &self.stage.scenes[random.below(self.stage.scenes.len())];
            match random.below(40) {
                0 => models::round(self, scene, &mut random)?,
                1..=15 => writes::round(self, scene, &mut random)?,
                _ => reads::round(self, scene, &mut random)?,
            }
            if random.once_in(200) {
                scene.engine.release_buffers();
            }
            self.round += 1;
        }
        Ok(())
    }

    /// Returns a random kind of memory: mostly on the GPU, if there is one.
    pub fn kind(&self, random: &mut Random) -> Kind {
        let at = if random.once_in(3) { random.below(self.buffers.len()) } else { 0 };
        self.buffers[at].0
    }

    /// Takes the buffer of this kind. The caller [puts it back](Self::put).
    pub fn take(&mut self, kind: Kind) -> Memory {
        let at = self.buffers.iter().position(|(of, _)| *of == kind).expect("a kind from `kind`");
        self.buffers.swap_remove(at).1
    }

    pub fn put(&mut self, kind: Kind, memory: Memory) {
        self.buffers.push((kind, memory));
        self.buffers.sort_by_key(|(kind, _)| Reverse(*kind as u8));
    }

    pub fn count(&mut self, way: &'static str, calls: usize, bytes: usize) {
        let sum = self.counts.entry(way).or_default();
        *sum = (sum.0 + calls as u64, sum.1 + bytes as u64);
    }

    /// Returns one of these files, chosen at random.
    pub fn any<'f>(files: &'f [gpufile::File], random: &mut Random) -> &'f gpufile::File {
        &files[random.below(files.len())]
    }

    pub fn written_salt(&self) -> u64 {
        (self.number << 40 | self.round) + 2
    }
}

impl Scene {
    /// Returns the actor's stream, every other time. Sometimes the stream is blocked for up to 10 ms.
    pub fn stream<'s>(stream: Option<&'s Stream>, random: &mut Random) -> Result<Option<&'s Stream>> {
        let Some(stream) = stream.filter(|_| random.once_in(2)) else { return Ok(None) };
        if random.once_in(3) {
            let pause = Duration::from_micros(random.below(10_000) as u64);
            stream.call_on_host(move || thread::sleep(pause))?;
        }
        Ok(Some(stream))
    }

    /// Opens the file to be read with an engine of its own, now and then. The transfers of the file then have the last
    /// references to the engine when the caller drops the file.
    pub fn read_alone(&self, random: &mut Random) -> Result<Option<File>> {
        if !random.once_in(8) {
            return Ok(None);
        }
        let engine = Engine::builder().threads(1 + random.below(3)).chunk_bytes(100_003).build();
        let policy = random.pick(&self.policies);
        Ok(Some(File::options().read(true).policy(policy).engine(&engine).open(self.read[0].path())?))
    }
}
