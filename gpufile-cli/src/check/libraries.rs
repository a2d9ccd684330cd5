//! libcuda, libcudart and libcufile: versions, places, and the calls that an old libcufile lacks.

use std::path::{Path, PathBuf};
use std::{env, fs};

use cuda_rt_sys::{driver, runtime};
use cufile::Version;
use cufile::sys::Functions;

use super::root;
use super::unusable::Unusable;

#[derive(Debug, Clone, PartialEq)]
pub struct Library {
    pub name: &'static str,
    pub variable: &'static str,
    pub named: Option<String>,
    /// The library, or the reasons with each file that was tried.
    pub found: Result<Found, String>,
    /// A file that is there and does not load.
    pub unusable: Option<Unusable>,
}

impl Library {
    /// Returns the variable and the file that it names, if the library does not load from there.
    pub fn misnamed(&self) -> Option<(&'static str, String)> {
        let named = self.named.clone().filter(|_| self.found.is_err())?;
        Some((self.variable, named))
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    pub version: String,
    pub path: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Libraries {
    pub cuda: Library,
    pub cudart: Library,
    pub cufile: Library,
    /// The version of libcufile, as a pair that can be compared.
    pub cufile_version: Option<(u32, u32)>,
    /// The library in the folder of libcufile that user-space file systems need.
    pub rdma: Option<PathBuf>,
}

impl Libraries {
    pub fn load() -> Self {
        let cuda = driver::Library::load().map(|library| {
            let mut version = 0;
            // SAFETY: `version` outlives the call, which needs no cuInit. It keeps its 0 if the call fails.
            unsafe { (library.cuDriverGetVersion)(&mut version) };
            found(cuda_version(version), library.path())
        });
        let cudart =
            runtime::Library::load().map(|library| found(cuda_version(library.version()), library.path()));
        let (cufile, version) = match cufile::Library::load() {
            Ok(library) => {
                let version = library.version();
                (Ok(found(version.to_string(), library.path())), Some(version))
            }
            Err(error) => (Err(error), None),
        };
        let library = |name, variable, found: Result<Found, cufile::Error>| {
            let named = env::var_os(variable).map(|path| path.to_string_lossy().into_owned());
            let unusable = match &found {
                Err(cufile::Error::Load(error)) => Unusable::of(error),
                _ => None,
            };
            Library { name, variable, named, found: found.map_err(|error| error.to_string()), unusable }
        };
        let rdma = cufile.as_ref().ok().and_then(|found| rdma(found.path.as_ref()?.parent()?));
        Self {
            rdma,
            cuda: library("libcuda", "CUDA_LIBRARY", cuda.map_err(cufile::Error::from)),
            cudart: library("libcudart", "CUDART_LIBRARY", cudart.map_err(cufile::Error::from)),
            cufile: library("libcufile", "CUFILE_LIBRARY", cufile),
            cufile_version: version.map(|Version { major, minor }| (major, minor)),
        }
    }

    /// Returns the libraries in the order in which they are needed.
    pub fn all(&self) -> [&Library; 3] {
        [&self.cuda, &self.cudart, &self.cufile]
    }
}

/// Returns the calls that an older libcufile lacks, with the version that brought each.
pub fn calls_since((major, minor): (u32, u32)) -> Vec<(&'static str, (u32, u32))> {
    let symbols = Functions::SYMBOLS.iter();
    let since = |raw: i32| (raw.unsigned_abs() / 1000, raw.unsigned_abs() % 1000 / 10);
    let missing =
        symbols.map(|symbol| (symbol.name, since(symbol.since))).filter(|(_, since)| *since > (major, minor));
    missing.collect()
}

fn found(version: String, path: Option<&Path>) -> Found {
    Found { version, path: path.map(whole) }
}

fn rdma(folder: &Path) -> Option<PathBuf> {
    root::list(folder).into_iter().find(|path| root::name(path).starts_with("libcufile_rdma.so"))
}

/// Returns the version that a number stands for: 13.0 for 13000. A library without an answer returns 0.
fn cuda_version(raw: i32) -> String {
    if raw == 0 { "?".to_owned() } else { format!("{}.{}", raw / 1000, raw % 1000 / 10) }
}

fn whole(path: &Path) -> PathBuf {
    // The kernel lists the target of the link `libcuda.so.1`, such as `libcuda.so.580.65`.
    let stem = |path: &Path| path.file_name()?.to_str()?.split_once(".so").map(|(stem, _)| stem.to_owned());
    let mapped = || {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let mut files = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
        files.find(|file| stem(file).is_some() && stem(file) == stem(path))
    };
    let is_bare = path.components().count() == 1;
    is_bare.then(mapped).flatten().unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_lack_the_calls_of_newer_ones() {
        assert!(calls_since((2, 0)).is_empty());
        let missing = calls_since((1, 18));
        assert!(missing.contains(&("cuFileReadv", (1, 19))), "{missing:?}");
        assert!(missing.iter().all(|(_, since)| *since >= (1, 19)));
        assert!(calls_since((1, 11)).len() > calls_since((1, 14)).len());
    }

    #[test]
    fn numbers_print_as_versions() {
        assert_eq!([0, 13000, 12080, 11080].map(cuda_version), ["?", "13.0", "12.8", "11.8"]);
    }
}
