//! The state of open drivers, for libraries whose properties must not be read once they are in use.
//!
//! Up to 1.16, reading the properties makes libcufile read its configuration again. Up to 1.15, a transfer of another
//! thread then divides by one of the settings, and the process ends (`SIGFPE`). In 1.14 to 1.16, libcufile loses the
//! parameters that the program set, until the next opening. So this module reads the properties once, before the
//! first driver opens. After each opening, it corrects those that are parameters.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::library::{Feature, Library, Version};
use crate::params::{Bytes, Param};
use crate::properties::{Controls, DriverProperties};

/// The first version whose properties can be read at any time.
const CAN_BE_ASKED: Version = Version { major: 1, minor: 17 };

struct Opened {
    library: Library,
    drivers: usize,
    /// For a library that must not be asked.
    properties: Option<DriverProperties>,
}

/// Returns whether reading the properties harms neither the parameters nor transfers. In such versions the setters
/// older than the parameters have an effect, too.
pub(crate) fn can_be_asked(library: &Library) -> bool {
    library.version() >= CAN_BE_ASKED
}

/// Reads the properties of a library that must not be asked later, if they are not known. The caller holds [the
/// lock](crate::library::one_at_a_time), and opens the driver next.
///
/// # Errors
/// libcufile's error.
pub(crate) fn ask_first(library: &Library) -> Result<Option<DriverProperties>> {
    match find(&mut all(), library) {
        Some(Opened { properties: Some(_), .. }) => Ok(None),
        _ if can_be_asked(library) => Ok(None),
        _ => DriverProperties::ask(library).map(Some),
    }
}

/// Notes a newly opened driver, before it transfers anything, with the properties that [`ask_first`] has read. The
/// caller makes sure that no other thread opens at the same time.
///
/// # Errors
/// The failure to read the parameters. This notes no driver then.
pub(crate) fn add(library: &Library, asked: Option<DriverProperties>) -> Result<()> {
    let mut properties = asked.or_else(|| properties(library));
    if let Some(properties) = &mut properties
        && check_none(library).is_ok()
        && library.supports(Feature::Parameters)
    {
        take_over_parameters(properties, library)?;
    }
    let mut all = all();
    match find(&mut all, library) {
        Some(opened) => (opened.drivers, opened.properties) = (opened.drivers + 1, properties),
        None => all.push(Opened { library: library.clone(), drivers: 1, properties }),
    }
    Ok(())
}

/// Notes that a driver has closed.
pub(crate) fn remove(library: &Library) {
    if let Some(opened) = find(&mut all(), library) {
        opened.drivers -= 1;
    }
}

/// Returns the properties of a library that must not be asked.
pub(crate) fn properties(library: &Library) -> Option<DriverProperties> {
    find(&mut all(), library)?.properties.clone()
}

/// # Errors
/// [`Error::InUse`] while drivers are open, because they took over their settings when they opened.
pub(crate) fn check_none(library: &Library) -> Result<()> {
    match find(&mut all(), library) {
        Some(opened) if opened.drivers > 0 => {
            Err(Error::InUse { what: "the cuFile driver", users: opened.drivers })
        }
        _ => Ok(()),
    }
}

/// Replaces values from the configuration by the parameters that the driver opened with.
fn take_over_parameters(properties: &mut DriverProperties, library: &Library) -> Result<()> {
    let params = library.params();
    let Bytes(poll_threshold) = params.get(Param::POLL_THRESHOLD)?;
    let Bytes(max_direct_io) = params.get(Param::MAX_DIRECT_IO_SIZE)?;
    let Bytes(max_device_cache) = params.get(Param::MAX_DEVICE_CACHE_SIZE)?;
    let Bytes(per_buffer_cache) = params.get(Param::PER_BUFFER_CACHE_SIZE)?;
    let Bytes(max_device_pinned) = params.get(Param::MAX_DEVICE_PINNED_MEMORY)?;
    properties.poll_threshold_bytes = poll_threshold;
    properties.max_direct_io_bytes = max_direct_io;
    properties.max_device_cache_bytes = max_device_cache;
    properties.per_buffer_cache_bytes = per_buffer_cache;
    properties.max_device_pinned_bytes = max_device_pinned;
    properties.max_batch_entries = params.get(Param::MAX_BATCH_ENTRIES)? as u32;
    properties.max_batch_timeout = params.get(Param::BATCH_TIMEOUT)?;
    properties.controls.set(Controls::POLL_MODE, params.get(Param::USE_POLL_MODE)?);
    properties.controls.set(Controls::COMPAT_MODE, params.get(Param::ALLOW_COMPAT_MODE)?);
    Ok(())
}

fn find<'a>(all: &'a mut [Opened], library: &Library) -> Option<&'a mut Opened> {
    all.iter_mut().find(|opened| opened.library.is(library))
}

fn all() -> MutexGuard<'static, Vec<Opened>> {
    static ALL: Mutex<Vec<Opened>> = Mutex::new(Vec::new());
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}
