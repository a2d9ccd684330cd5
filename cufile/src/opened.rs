//! What is known of open drivers, for libraries that must not be asked while bytes are on their way.
//!
//! Up to 1.15, reading the properties, and each setter that is older than the parameters, makes libcufile forget its
//! settings for a moment. A transfer of another thread divides by one of them then, and the process ends (`SIGFPE`). So
//! the properties are read once, when the first driver opens, and the setters are refused from then on.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::library::{Library, Version};
use crate::properties::DriverProperties;

/// The first version that can be asked at any time.
const CAN_BE_ASKED: Version = Version { major: 1, minor: 16 };

struct Opened {
    library: Library,
    drivers: usize,
    properties: DriverProperties,
}

/// Whether properties and setters end transfers of this version.
fn breaks_transfers(library: &Library) -> bool {
    library.version() < CAN_BE_ASKED
}

/// Notes a driver that was opened, before it transfers anything. The caller has [its turn](crate::library::one_at_a_time).
///
/// # Errors
/// Why the properties could not be read; nothing is noted then.
pub(crate) fn add(library: &Library) -> Result<()> {
    if !breaks_transfers(library) {
        return Ok(());
    }
    let mut all = all();
    if let Some(opened) = all.iter_mut().find(|opened| opened.library.is(library)) {
        opened.drivers += 1;
        return Ok(());
    }
    let properties = DriverProperties::ask(library)?;
    all.push(Opened { library: library.clone(), drivers: 1, properties });
    Ok(())
}

/// Notes that a driver was closed.
pub(crate) fn remove(library: &Library) {
    let mut all = all();
    if let Some(opened) = all.iter_mut().find(|opened| opened.library.is(library)) {
        opened.drivers -= 1;
    }
    all.retain(|opened| opened.drivers > 0);
}

/// The properties that the first driver had, if this version must not be asked.
pub(crate) fn properties(library: &Library) -> Option<DriverProperties> {
    all().iter().find(|opened| opened.library.is(library)).map(|opened| opened.properties.clone())
}

/// # Errors
/// [`Error::InUse`] while drivers are open that a setter would disturb. The caller has
/// [its turn](crate::library::one_at_a_time).
pub(crate) fn check_none(library: &Library) -> Result<()> {
    match all().iter().find(|opened| opened.library.is(library)) {
        Some(opened) => Err(Error::InUse { what: "the cuFile driver", users: opened.drivers }),
        None => Ok(()),
    }
}

fn all() -> MutexGuard<'static, Vec<Opened>> {
    static ALL: Mutex<Vec<Opened>> = Mutex::new(Vec::new());
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}
