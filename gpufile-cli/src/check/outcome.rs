//! The outcome for a path, and the exit status that follows.

use std::path::{Path, PathBuf};

use cufile::FileType;
use gpufile::RouteKind;

use super::attempt::Attempt;
use super::cause::Cause;
use super::effect::Effect;
use super::target::Target;

pub struct Outcome {
    pub path: PathBuf,
    /// The facts, or the reason why the path cannot be opened.
    pub target: Result<Target, String>,
    pub causes: Vec<Cause>,
    /// The result of `--try`.
    pub attempt: Option<Result<Attempt, String>>,
}

/// The verdict for a path, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The bytes bypass host memory.
    Fast,
    /// The bytes pass through host memory.
    Fallback,
    /// The bytes cannot go to a GPU.
    Impossible,
    /// A variable is wrong, the path cannot be used, or the attempt failed.
    Failed,
}

impl Verdict {
    pub fn on(route: RouteKind) -> Self {
        match route {
            RouteKind::Gds | RouteKind::P2pDma => Verdict::Fast,
            RouteKind::CufileCompat | RouteKind::Posix => Verdict::Fallback,
            _ => Verdict::Impossible,
        }
    }

    pub fn status(self) -> u8 {
        match self {
            Verdict::Fast => 0,
            Verdict::Failed => 1,
            Verdict::Fallback => 3,
            Verdict::Impossible => 4,
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Verdict::Fast => "fast",
            Verdict::Fallback => "fallback",
            Verdict::Impossible => "impossible",
            Verdict::Failed => "failed",
        }
    }
}

impl Outcome {
    pub fn new(
        path: &Path,
        target: Result<Target, String>,
        mut causes: Vec<Cause>,
        attempt: Option<Result<Attempt, String>>,
    ) -> Self {
        let disproof = attempt.as_ref().and_then(|attempt| attempt.as_ref().ok()?.disproof());
        causes.extend(disproof.map(Cause::CountersStill));
        causes.sort_by_key(Cause::effect);
        Self { path: path.to_owned(), target, causes, attempt }
    }

    fn has(&self, effect: Effect) -> bool {
        self.causes.iter().any(|cause| cause.effect() == effect)
    }

    /// Returns whether a setting of libcufile contradicts a direct route.
    fn is_staged_anyway(&self) -> bool {
        self.has(Effect::Stages)
    }

    /// Returns the verdict. Causes that only limit or slow do not change it.
    pub fn verdict(&self) -> Verdict {
        match (&self.target, &self.attempt) {
            (Err(_), _) | (_, Some(Err(_))) => Verdict::Failed,
            _ if self.has(Effect::Fails) => Verdict::Failed,
            (Ok(target), Some(Ok(attempt))) if attempt.proven() == Some(false) => {
                Verdict::on(target.route).max(Verdict::Fallback)
            }
            (Ok(target), _) if self.is_staged_anyway() => Verdict::on(target.route).max(Verdict::Fallback),
            (Ok(target), _) => Verdict::on(target.route),
        }
    }

    /// Returns the sentence about the path that follows the verdict.
    pub fn headline(&self) -> String {
        match (&self.target, &self.attempt) {
            (Err(error), _) => error.clone(),
            (Ok(_), Some(Err(error))) => format!("the attempt failed: {error}"),
            (Ok(_), _) if self.has(Effect::Fails) => "a variable is wrong".to_owned(),
            (Ok(target), Some(Ok(attempt))) if attempt.proven() == Some(false) => {
                format!("{}, but the counters do not show it: {}", target.route, attempt.proof())
            }
            (Ok(target), _) if target.is_direct() && self.is_staged_anyway() => {
                format!(
                    "{} is available, but libcufile is configured to pass the bytes through host memory",
                    target.route
                )
            }
            (Ok(target), _) => match Verdict::on(target.route) {
                Verdict::Fallback => format!("the bytes pass through host memory ({})", target.route),
                Verdict::Impossible => format!("no bytes reach a GPU; {}", on_host(target)),
                _ => format!("the bytes bypass host memory ({})", target.route),
            },
        }
    }
}

fn on_host(target: &Target) -> &'static str {
    match target.file_type {
        FileType::Directory => "no file was found here to read or write",
        _ if target.read_only.is_some() => "files can be read into host memory, but not written",
        _ => "host memory can be read and written",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::target::{ReadOnly, tests::good};
    use super::*;

    fn outcome(route: RouteKind) -> Outcome {
        let target = Target { route, ..good() };
        Outcome { path: target.path.clone(), target: Ok(target), causes: vec![], attempt: None }
    }

    #[test]
    fn exit_status_tells_direct_routes_from_fallbacks() {
        for (route, expected) in [
            (RouteKind::Gds, 0),
            (RouteKind::P2pDma, 0),
            (RouteKind::CufileCompat, 3),
            (RouteKind::Posix, 3),
            (RouteKind::Unavailable, 4),
        ] {
            assert_eq!(outcome(route).verdict().status(), expected, "{route}");
        }
    }

    #[test]
    fn failures_outweigh_the_route() {
        let mut wrong = outcome(RouteKind::Gds);
        wrong.causes = vec![Cause::Iommu];
        assert_eq!(wrong.verdict(), Verdict::Fast);
        wrong.causes.push(Cause::WrongVariable("x".to_owned()));
        assert_eq!(wrong.verdict(), Verdict::Failed);
        let missing = Outcome { target: Err("cannot open".to_owned()), ..outcome(RouteKind::Gds) };
        assert_eq!((missing.verdict().status(), missing.headline().as_str()), (1, "cannot open"));
        let failed = Outcome { attempt: Some(Err("no space".to_owned())), ..outcome(RouteKind::Gds) };
        assert_eq!(failed.verdict(), Verdict::Failed);
        assert!(Verdict::Failed > Verdict::Impossible && Verdict::Impossible > Verdict::Fallback);
    }

    #[test]
    fn settings_of_libcufile_outweigh_the_route() {
        let staged =
            Outcome { causes: vec![Cause::Other("set so".to_owned())], ..outcome(RouteKind::P2pDma) };
        assert_eq!(staged.verdict(), Verdict::Fallback);
        assert!(staged.headline().contains("is available, but"), "{}", staged.headline());
    }

    #[test]
    fn headline_promises_only_what_the_path_allows() {
        let headline = |target: Target| {
            let target = Target { route: RouteKind::Unavailable, ..target };
            Outcome { target: Ok(target), ..outcome(RouteKind::Unavailable) }.headline()
        };
        assert!(headline(good()).ends_with("host memory can be read and written"));
        let read_only = Target { read_only: Some(ReadOnly::Mount), ..good() };
        assert!(headline(read_only).ends_with("but not written"));
        let no_file = Target { file_type: FileType::Directory, ..good() };
        assert!(headline(no_file).ends_with("no file was found here to read or write"));
    }

    #[test]
    fn unproven_route_is_a_fallback() {
        let attempt = Attempt {
            gpu: Some(0),
            route: RouteKind::Gds,
            write: Some(Duration::ZERO),
            read: Duration::ZERO,
            by_cufile: Some((1, 1)),
            by_nvidia_fs: Some((0, 0)),
        };
        let Outcome { path, target, .. } = outcome(RouteKind::Gds);
        let found = Outcome::new(&path, target, vec![Cause::Iommu], Some(Ok(attempt)));
        let (problem, remedy) = (found.causes[0].problem(), found.causes[0].remedy());
        assert!(problem.contains("GPUDirect Storage, but libcufile counted 1 writes"), "{problem}");
        assert!(
            remedy.contains("CUFILE_LOGGING_LEVEL=TRACE") && remedy.contains("rw_stats_enabled"),
            "{remedy}"
        );
        assert_eq!((found.causes[0].key(), found.causes.len()), ("counters-still", 2));
        assert_eq!(found.verdict(), Verdict::Fallback);
        assert!(found.headline().contains("nvidia-fs counted 0 writes"), "{}", found.headline());
    }
}
