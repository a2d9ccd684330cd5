//! The state of open drivers, for libraries whose properties must not be read once they are in use.
//!
//! Up to 1.16, reading the properties makes libcufile read its configuration again. Up to 1.15, a transfer of another
//! thread then divides by one of the settings, and the process ends (`SIGFPE`). In 1.14 to 1.16, libcufile loses the
//! parameters that the program set, until the next opening. So the driver reads them once, before it opens first, and
//! after each opening corrects those that are parameters.

use std::sync::MutexGuard;

use crate::error::{Error, Result};
use crate::fork::Mutex;
use crate::library::{Library, one_at_a_time};
use crate::properties::DriverProperties;
use crate::version::Version;

const CAN_BE_ASKED: Version = Version { major: 1, minor: 17 };

struct Opened {
    library: Library,
    drivers: usize,
    properties: Option<DriverProperties>,
}

/// Returns whether reading the properties is harmless. In such versions the setters older than the parameters also
/// have an effect.
pub(crate) fn can_be_asked(library: &Library) -> bool {
    library.version() >= CAN_BE_ASKED
}

/// Reads the properties; the caller holds [the lock](crate::library::one_at_a_time), and opens the driver
/// next.
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

/// Notes a newly opened driver, before it transfers anything. The caller makes sure that no other thread opens at the same
/// time.
pub(crate) fn add(library: &Library, properties: Option<DriverProperties>) {
    let mut all = all();
    match find(&mut all, library) {
        Some(opened) => (opened.drivers, opened.properties) = (opened.drivers + 1, properties),
        None => all.push(Opened { library: library.clone(), drivers: 1, properties }),
    }
}

pub(crate) fn remove(library: &Library) {
    if let Some(opened) = find(&mut all(), library) {
        opened.drivers -= 1;
    }
}

pub(crate) fn known(library: &Library) -> Option<DriverProperties> {
    find(&mut all(), library)?.properties.clone()
}

pub(crate) fn properties(library: &Library) -> Result<DriverProperties> {
    if let Some(known) = known(library) {
        return Ok(known);
    }
    let _turn = one_at_a_time()?;
    DriverProperties::ask(library)
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

fn find<'a>(all: &'a mut [Opened], library: &Library) -> Option<&'a mut Opened> {
    all.iter_mut().find(|opened| opened.library.is(library))
}

fn all() -> MutexGuard<'static, Vec<Opened>> {
    static ALL: Mutex<Vec<Opened>> = Mutex::of_static(Vec::new());
    ALL.lock()
}
