//! The container that the process is in, if it is in one.

use super::root::Root;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    Kubernetes,
    /// A container of Docker, Podman, containerd or another runtime.
    Other,
}

/// Files that Docker, Podman and systemd put into their containers. containerd puts none.
const MARKERS: [&str; 3] = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];
/// Words in the path of a control group that a container's runtime makes.
const GROUPS: [&str; 5] = ["docker", "containerd", "libpod", "crio", "lxc"];

impl Container {
    pub fn of(root: &Root, variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let groups = root.text("/proc/self/cgroup").unwrap_or_default();
        let is_pod = variable("KUBERNETES_SERVICE_HOST").is_some()
            || root.at("/var/run/secrets/kubernetes.io").exists()
            || groups.contains("kubepods");
        if is_pod {
            return Some(Self::Kubernetes);
        }
        let is_marked = MARKERS.iter().any(|file| root.at(file).exists()) || variable("container").is_some();
        let is_grouped = GROUPS.iter().any(|word| groups.contains(word));
        (is_marked || is_grouped || has_layered_root(root)).then_some(Self::Other)
    }

    pub fn key(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Other => "other",
        }
    }
}

/// Returns whether `/` is an overlay, as runtimes mount it for a container.
fn has_layered_root(root: &Root) -> bool {
    let mounts = root.text("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some("/") && line.contains(" - overlay "))
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    const OVERLAY: &str = "27 1 0:30 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/containerd/1/fs";

    fn of(file: &str, text: &str, variables: &[&str]) -> Option<Container> {
        let fake = Fake::new();
        fake.file(file, text);
        Container::of(&fake.root(), &|name| variables.contains(&name).then(|| "x".to_owned()))
    }

    #[test]
    fn containers_are_found_without_marker_files() {
        let other = Some(Container::Other);
        for (file, text, expected) in [
            ("/.dockerenv", "", other),
            ("/run/.containerenv", "", other),
            ("/proc/self/mountinfo", OVERLAY, other),
            ("/proc/self/mountinfo", &OVERLAY.replace(" / / ", " / /mnt "), None),
            ("/proc/self/cgroup", "0::/system.slice/containerd.service/x", other),
            ("/proc/self/cgroup", "0::/user.slice/user-0.slice", None),
            ("/proc/self/cgroup", "0::/kubepods.slice/pod1", Some(Container::Kubernetes)),
            ("/var/run/secrets/kubernetes.io/x", "", Some(Container::Kubernetes)),
        ] {
            assert_eq!(of(file, text, &[]), expected, "{file}: {text}");
        }
        assert_eq!(of("/x", "", &["KUBERNETES_SERVICE_HOST"]), Some(Container::Kubernetes));
        assert_eq!((of("/x", "", &["container"]), of("/x", "", &["HOME"])), (other, None));
    }
}
