//! The pinned packages with headers, real libraries, libclang and the compiler of kernels. pip fetches them into
//! `target/packages`.
//!
//! pip checks their SHA-256, and the repository never contains them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

use crate::target::Target;
use crate::workspace::target_folder;

pub struct Package {
    pub name: &'static str,
    pub version: &'static str,
    x86_64: &'static str,
    aarch64: &'static str,
}

const fn package(
    name: &'static str,
    version: &'static str,
    x86_64: &'static str,
    aarch64: &'static str,
) -> Package {
    Package { name, version, x86_64, aarch64 }
}

/// The C libraries as in the wheels' names.
const WHEELS: [&str; 4] = ["manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux2010"];

/// The newest of [`CUFILE`] and of [`CUDA_RUNTIME`], from which the bindings are generated.
pub const CUFILE_HEADER: &Package = &CUFILE[CUFILE.len() - 1];
pub const CUDA_HEADER: &Package = &CUDA_RUNTIME[CUDA_RUNTIME.len() - 1];

/// `crt/host_defines.h`, which every version's `cuda_runtime_api.h` includes.
pub const CUDA_CRT: &Package = &package(
    "nvidia-cuda-crt",
    "13.5.37",
    "e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29",
    "9ed2c565fdf3244fa6719769a80a466b85bfd4b1467ea339353bc91c971d09e0",
);

pub const LIBCLANG: &Package = &package(
    "libclang",
    "18.1.1",
    "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
    "54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592",
);

/// The compiler of the kernels. It is of the oldest supported CUDA, whose PTX every driver takes.
pub const NVRTC: &Package = &package(
    "nvidia-cuda-nvrtc-cu11",
    "11.8.89",
    "a8d02f3cba345be56b1ffc3e74d8f61f02bb758dd31b0f20e12277a5a244f756",
    "8ab17ed51e7c4928f7170a0551e3e3b42f89d973bd267ced9688c238b3e10aef",
);

/// Every supported libcufile, oldest first.
pub const CUFILE: &[Package] = &[
    package(
        "nvidia-cufile-cu12",
        "1.11.1.6",
        "cc23469d1c7e52ce6c1d55253273d32c565dd22068647f3aa59b3c6b005bf159",
        "8f57a0051dcf2543f6dc2b98a98cb2719c37d3cee1baba8965d57f3bbc90d4db",
    ),
    package(
        "nvidia-cufile-cu12",
        "1.13.1.3",
        "1d069003be650e131b21c932ec3d8969c1715379251f8d23a1860554b1cb24fc",
        "4beb6d4cce47c1a0f1013d72e02b0994730359e17801d395bdcbf20cfb3bb00a",
    ),
    package(
        "nvidia-cufile-cu12",
        "1.14.1.1",
        "9552e2231792e94b1ff17bc99e958cc0e6bbbaa4a9d91fa2dbeed97716628fe6",
        "8dea77590761e02cb6dd955a57cb6414c58aa3cb1b7adbf9919869a11509cf65",
    ),
    package(
        "nvidia-cufile",
        "1.15.1.6",
        "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
        "bdc0deedc61f548bddf7733bdc216456c2fdb101d020e1ab4b88d232d5e2f6d1",
    ),
    package(
        "nvidia-cufile",
        "1.16.1.26",
        "490e1f46fcd91fe3629b3819778d82ba9bc19a05704a362415432c7f4a899d37",
        "c00f326bf15b83c60cc8e668db7447a89dc89ab75f039e8b9929db1e48fd776a",
    ),
    package(
        "nvidia-cufile",
        "1.17.1.22",
        "87feaf8c3ad20d3d03a01933181801ff6892bace5c8f0b1e4b48f319d3e62d36",
        "bec33d7f1f12691dce330275246587569c2ed90b1ce43b0f94b3e1ce9268744b",
    ),
    package(
        "nvidia-cufile",
        "1.18.1.6",
        "9ad93e44607facaddabb4bff042f00043caec62d96af8a1f5274ec801ded23f2",
        "c4bc76857335b4615c3906453ff375632466cc48e823b56ec146de4d58f2781c",
    ),
    package(
        "nvidia-cufile",
        "1.19.1.55",
        "971a830d6ad3e160b52085c7340abd3a683e477b8995de9ff8b7912b4138f319",
        "56f00f0aad7b6da086f764cfefe8af3a36b05d4f0849f94717e5e25043a2071d",
    ),
    package(
        "nvidia-cufile",
        "1.20.0.107",
        "d134f10ce336c411664d79e3538e4797b38a41d3388edad1ec4a1a8c64c8c03a",
        "cbd04b0f7b7ae24c1e7c3c52514b80cf89e7157db19c9ae6f3c274fc72af83e6",
    ),
];

/// One CUDA runtime of each supported major version, oldest first.
pub const CUDA_RUNTIME: &[Package] = &[
    package(
        "nvidia-cuda-runtime-cu11",
        "11.8.89",
        "92d04069a987e1fbc9213f8376d265df0f7bb42617d44f5eda1f496acea7f2d1",
        "e53bf160b6b660819cb6e4a9da2cc89e6aa2329858299780a2459780a2b8d012",
    ),
    package(
        "nvidia-cuda-runtime-cu12",
        "12.9.79",
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
        "83469a846206f2a733db0c42e223589ab62fd2fabac4432d2f8802de4bded0a4",
    ),
    package(
        "nvidia-cuda-runtime",
        "13.5.37",
        "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        "de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d",
    ),
];

impl Package {
    /// Returns the `1.20` of `1.20.0.107`.
    pub fn release(&self) -> &'static str {
        let second_dot = self.version.match_indices('.').nth(1).map_or(self.version.len(), |(at, _)| at);
        &self.version[..second_dot]
    }

    /// Returns the folder of the wheel, which the first call downloads and unpacks.
    pub fn fetch(&self, target: Target) -> Result<PathBuf> {
        let name = format!("{}-{}-{}", self.name, self.version, target.arch());
        let folder = target_folder().join("packages").join(&name);
        if folder.exists() {
            return Ok(folder);
        }
        eprintln!("fetching {} {} for {}", self.name, self.version, target.arch());
        let scratch = folder.with_extension(format!("part-{}", std::process::id()));
        fs::create_dir_all(&scratch)?;
        let requirements = scratch.join("requirements.txt");
        let sha256 = match target {
            Target::X86_64 => self.x86_64,
            Target::Aarch64 => self.aarch64,
        };
        fs::write(&requirements, format!("{}=={} --hash=sha256:{sha256}\n", self.name, self.version))?;
        run(python()
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(WHEELS.map(|wheels| format!("--platform={wheels}_{}", target.arch())))
            .args(["--only-binary=:all:", "--require-hashes", "--dest"])
            .arg(&scratch)
            .arg("--requirement")
            .arg(&requirements))?;
        let wheel = fs::read_dir(&scratch)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
            .with_context(|| format!("pip left no wheel of {} {}", self.name, self.version))?;
        let unpacked = scratch.join("unpacked");
        run(python().args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
        if let Err(error) = fs::rename(&unpacked, &folder) {
            ensure!(folder.exists(), "cannot move the package into {}: {error}", folder.display());
        }
        fs::remove_dir_all(&scratch)?;
        Ok(folder)
    }

    /// Returns the folder that holds the file `name`.
    pub fn folder_of(&self, name: &str, target: Target) -> Result<PathBuf> {
        let root = self.fetch(target)?;
        let file = find(&root, name)
            .with_context(|| format!("{} {} contains no file {name}", self.name, self.version))?;
        Ok(file.parent().expect("a file found in a folder has a parent").to_owned())
    }
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries.into_iter().find_map(|path| {
        if path.is_dir() { find(&path, name) } else { path.file_name()?.eq(name).then_some(path) }
    })
}

fn python() -> Command {
    Command::new(env::var_os("PYTHON").unwrap_or_else(|| "python3".into()))
}

pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// After `cargo fetch`, `.ci/packages` needs no network.
#[test]
fn the_dependent_needs_no_more_packages_than_the_workspace() {
    let locked = |path| {
        let text = fs::read_to_string(crate::workspace::workspace().join(path)).unwrap();
        let packages = text.split("[[package]]\n").skip(1);
        packages
            .filter(|it| it.contains("checksum = "))
            .map(|it| it.lines().take(2).collect::<String>())
            .collect::<Vec<_>>()
    };
    let (ours, theirs) = (locked("Cargo.lock"), locked("ports/dependent/Cargo.lock"));
    let more: Vec<_> = theirs.iter().filter(|package| !ours.contains(package)).collect();
    assert!(theirs.len() > 20, "{theirs:?}");
    assert!(more.is_empty(), "`cargo update --precise` these in ports/dependent: {more:?}");
}
