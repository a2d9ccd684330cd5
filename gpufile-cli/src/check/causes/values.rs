//! Causes that lie in the values of a Lustre client and in the mount of WekaFS. They slow direct transfers too.

use super::Facts;
use crate::check::effect::Effect;
use crate::check::lustre::{self, Judged};
use crate::check::storage::Storage;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueCause {
    /// Values that `lctl` changes.
    Lustre(Vec<Judged>),
    /// Parameters of Lustre's kernel modules.
    LustreModules(Vec<Judged>),
    /// The mode of a WekaFS mount that keeps a read cache or is coherent.
    WekaMode(&'static str),
}

impl ValueCause {
    pub fn all(Facts { machine, target, storage }: Facts<'_>) -> Vec<Self> {
        match storage {
            Storage::Lustre => {
                let Some(found) = &machine.lustre else { return vec![] };
                let (parameters, modules) = (found.parameters.clone(), found.modules.clone());
                let parameters = (!parameters.is_empty()).then_some(Self::Lustre(parameters));
                let modules = (!modules.is_empty()).then_some(Self::LustreModules(modules));
                parameters.into_iter().chain(modules).collect()
            }
            Storage::Weka => {
                let has = |option: &str| target.mount.as_ref().is_some_and(|mount| mount.has(option));
                ["readcache", "coherent"].into_iter().filter(|mode| has(mode)).map(Self::WekaMode).collect()
            }
            _ => vec![],
        }
    }

    pub fn effect(&self) -> Effect {
        Effect::Slows
    }

    pub fn key(&self) -> &'static str {
        match self {
            Self::Lustre(_) => "lustre-values",
            Self::LustreModules(_) => "lustre-modules",
            Self::WekaMode(_) => "weka-mount-mode",
        }
    }

    pub fn problem(&self) -> String {
        let list = |judged: &[Judged]| {
            let texts =
                judged.iter().map(|one| format!("{} is {} (wanted: {})", one.name, one.value, one.wanted));
            texts.collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Lustre(judged) => format!("values of the Lustre client limit its speed: {}", list(judged)),
            Self::LustreModules(judged) => {
                format!("parameters of Lustre's modules limit its speed: {}", list(judged))
            }
            Self::WekaMode("readcache") => {
                "WekaFS is mounted with its read cache, which reads over the direct path do not use"
                    .to_owned()
            }
            Self::WekaMode(_) => {
                "WekaFS is mounted coherent, which keeps data and metadata consistent and costs speed"
                    .to_owned()
            }
        }
    }

    pub fn remedy(&self) -> String {
        match self {
            Self::Lustre(judged) => {
                let settings =
                    judged.iter().map(|one| format!("{}={}", one.name, lustre::setting(&one.name)));
                format!("`lctl set_param {}`", settings.collect::<Vec<_>>().join(" "))
            }
            Self::LustreModules(judged) => {
                let settings =
                    judged.iter().map(|one| format!("{}={}", one.name, lustre::setting(&one.name)));
                format!(
                    "set them in /etc/modprobe.d/lustre.conf (options {}), and load the modules again",
                    settings.collect::<Vec<_>>().join("; options ")
                )
            }
            Self::WekaMode(_) => {
                "the mode writecache is the fastest one, if the data need no consistency across hosts"
                    .to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufile::RouteKind;

    use super::*;
    use crate::check::lustre::Lustre;
    use crate::check::right_facts::{causes_of, good, machine, mounted, with};
    use crate::check::target::Target;

    fn direct(file_system: &str, options: &[&str]) -> Target {
        with(mounted(file_system, options), |target| target.route = RouteKind::Gds)
    }

    #[test]
    fn values_of_lustre_are_causes_on_every_route() {
        let judged = |name: &str, value: &str, wanted: &str| {
            vec![Judged { name: name.to_owned(), value: value.to_owned(), wanted: wanted.to_owned() }]
        };
        let machine = with(machine(), |machine| {
            machine.lustre = Some(Lustre {
                parameters: judged("osc.*.max_rpcs_in_flight", "8", "at least 32"),
                modules: judged("ko2iblnd peer_credits", "8", "at least 32"),
            });
        });
        for target in [direct("lustre", &[]), mounted("lustre", &[])] {
            let found = causes_of(&machine, &target);
            let of = |key: &str| {
                found.iter().find(|(found, ..)| *found == key).unwrap_or_else(|| panic!("{found:?}"))
            };
            let (_, problem, remedy) = of("lustre-values");
            assert!(problem.contains("osc.*.max_rpcs_in_flight is 8 (wanted: at least 32)"), "{problem}");
            assert_eq!(remedy, "`lctl set_param osc.*.max_rpcs_in_flight=32`");
            let (_, problem, remedy) = of("lustre-modules");
            assert!(problem.contains("ko2iblnd peer_credits is 8"), "{problem}");
            assert!(remedy.contains("options ko2iblnd peer_credits=32"), "{remedy}");
        }
        assert_eq!(causes_of(&machine, &good()), []);
    }

    #[test]
    fn modes_of_weka_mounts_are_named() {
        for (mode, problem) in [("readcache", "do not use"), ("coherent", "costs speed")] {
            let found = causes_of(&machine(), &direct("wekafs", &["rw", mode]));
            let (_, text, remedy) = found.iter().find(|(key, ..)| *key == "weka-mount-mode").unwrap();
            assert!(text.contains(problem) && remedy.contains("writecache"), "{text}");
        }
        let keys: Vec<_> =
            causes_of(&machine(), &direct("wekafs", &["writecache"])).iter().map(|(key, ..)| *key).collect();
        assert_eq!(keys, ["weka-writes"]);
    }
}
