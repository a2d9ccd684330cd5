//! PCI devices in sysfs: links, BARs, NUMA nodes, and the distance between two devices.

use std::fmt;
use std::path::{Path, PathBuf};

use super::acs::Acs;
use super::root::{self, Root};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PciDevice {
    /// Domain, bus, device and function, such as `0000:18:00.0`.
    pub address: String,
    /// The way from the root complex over each bridge to the device.
    pub chain: Vec<String>,
    pub vendor: u32,
    /// The number of the model, which the vendor gives.
    pub model: u32,
    pub class: u32,
    pub numa_node: Option<u32>,
    pub link: Option<Link>,
    pub bar1_bytes: Option<u64>,
    pub has_p2p_memory: bool,
    /// The type of the IOMMU group: `identity`, `DMA`, `DMA-FQ`.
    pub iommu: Option<String>,
    /// `None` unless the device is a bridge.
    pub acs: Option<Acs>,
}

/// Speed and width, now and at best.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    pub speed: String,
    pub lanes: u32,
    pub max_speed: String,
    pub max_lanes: u32,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x{}", self.speed, self.lanes)?;
        if (&self.speed, self.lanes) != (&self.max_speed, self.max_lanes) {
            write!(f, " (at most {} x{})", self.max_speed, self.max_lanes)?;
        }
        Ok(())
    }
}

impl PciDevice {
    /// Returns whether it is NVIDIA's display or 3D controller.
    pub fn is_nvidia_gpu(&self) -> bool {
        self.vendor == 0x10de && self.class >> 16 == 0x03
    }

    pub fn of(folder: &Path) -> Option<Self> {
        let real = folder.canonicalize().ok()?;
        let text = |name: &str| root::text(&real.join(name));
        let number = |name: &str| u32::from_str_radix(text(name)?.trim_start_matches("0x"), 16).ok();
        let class = number("class").unwrap_or(0);
        let is_bridge = class >> 8 == 0x0604;
        Some(Self {
            address: root::name(&real),
            chain: chain(&real),
            vendor: number("vendor")?,
            model: number("device").unwrap_or(0),
            class,
            // The kernel shows −1 where the firmware names no node.
            numa_node: text("numa_node").and_then(|node| node.parse().ok()),
            link: link(&text),
            bar1_bytes: text("resource").and_then(|resource| bar_bytes(&resource, 1)),
            has_p2p_memory: real.join("p2pmem").exists(),
            iommu: text("iommu_group/type"),
            acs: is_bridge.then(|| Acs::of_config(&std::fs::read(real.join("config")).unwrap_or_default())),
        })
    }
}

/// Returns the devices in the order of addresses.
pub fn devices(root: &Root) -> Vec<PciDevice> {
    root.list("/sys/bus/pci/devices").iter().filter_map(|folder| PciDevice::of(folder)).collect()
}

/// Returns the PCI device that a device of any class belongs to: the last PCI address in its real path.
pub fn above(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    real.ancestors().find(|folder| is_address(&root::name(folder))).map(Path::to_owned)
}

fn chain(real: &Path) -> Vec<String> {
    let parts = real.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    parts.skip_while(|part| !part.starts_with("pci")).collect()
}

/// Returns whether the name is like `DDDD:BB:DD.F`.
fn is_address(name: &str) -> bool {
    let fields: Vec<&str> = name.split([':', '.']).collect();
    let widths: Vec<usize> = fields.iter().map(|field| field.len()).collect();
    let is_hex = fields.iter().all(|field| field.chars().all(|digit| digit.is_ascii_hexdigit()));
    is_hex && matches!(widths.as_slice(), [domain, 2, 2, 1] if *domain >= 4) && name.matches(':').count() == 2
}

fn link(text: &dyn Fn(&str) -> Option<String>) -> Option<Link> {
    let lanes = |name: &str| text(name)?.parse().ok().filter(|lanes| (1..=64).contains(lanes));
    // The kernel writes "32.0 GT/s PCIe".
    let speed = |name: &str| {
        let speed = text(name)?.trim_end_matches(" PCIe").replace(".0 GT/s", " GT/s");
        speed.starts_with(|digit: char| digit.is_ascii_digit()).then_some(speed)
    };
    Some(Link {
        speed: speed("current_link_speed")?,
        lanes: lanes("current_link_width")?,
        max_speed: speed("max_link_speed")?,
        max_lanes: lanes("max_link_width")?,
    })
}

/// Returns the size of a BAR by the file `resource`: a line of first address, last address and flags for each.
fn bar_bytes(resource: &str, bar: usize) -> Option<u64> {
    let line = resource.lines().nth(bar)?;
    let mut fields =
        line.split_whitespace().map(|field| u64::from_str_radix(field.trim_start_matches("0x"), 16));
    let (first, last) = (fields.next()?.ok()?, fields.next()?.ok()?);
    (last > first).then(|| last - first + 1)
}

/// The distance between two devices, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    SameSwitch,
    SameRootPort,
    SameNode,
    AcrossNodes,
    Unknown,
}

impl Distance {
    pub fn between(one: &PciDevice, other: &PciDevice) -> Self {
        let shared = one.chain.iter().zip(&other.chain).take_while(|(a, b)| a == b).count();
        match (shared, one.numa_node, other.numa_node) {
            // Root complex, root port, and the upstream port of a switch.
            (3.., _, _) => Distance::SameSwitch,
            (2, _, _) => Distance::SameRootPort,
            (_, Some(a), Some(b)) if a != b => Distance::AcrossNodes,
            (_, Some(_), Some(_)) | (1, _, _) => Distance::SameNode,
            _ => Distance::Unknown,
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Distance::SameSwitch => "same-switch",
            Distance::SameRootPort => "same-root-port",
            Distance::SameNode => "same-node",
            Distance::AcrossNodes => "across-nodes",
            Distance::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::SameSwitch => "same PCIe switch",
            Distance::SameRootPort => "same root port",
            Distance::SameNode => "same node, through the CPU",
            Distance::AcrossNodes => "across NUMA nodes",
            Distance::Unknown => "unknown distance",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    const GPU: &str = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";

    fn device(fake: &Fake, path: &str, files: &[(&str, &str)]) -> PciDevice {
        let name = root::name(Path::new(path));
        for (file, text) in files {
            fake.file(&format!("{path}/{file}"), text);
        }
        let link = format!("/sys/bus/pci/devices/{name}");
        fake.folder(path).link(&link, path);
        PciDevice::of(&fake.root().at(&link)).unwrap()
    }

    fn at(chain: &[&str], numa_node: Option<u32>) -> PciDevice {
        PciDevice {
            chain: chain.iter().map(|&part| part.to_owned()).collect(),
            numa_node,
            ..PciDevice::default()
        }
    }

    #[test]
    fn gpu_has_link_bar_node_and_group() {
        let fake = Fake::new();
        let gpu = device(
            &fake,
            GPU,
            &[
                ("vendor", "0x10de\n"),
                ("class", "0x030200\n"),
                ("numa_node", "1\n"),
                ("current_link_speed", "16.0 GT/s PCIe\n"),
                ("max_link_speed", "32.0 GT/s PCIe\n"),
                ("current_link_width", "8\n"),
                ("max_link_width", "16\n"),
                (
                    "resource",
                    "0x00000000c2000000 0x00000000c2ffffff 0x0000000000040200\n\
                     0x0000380000000000 0x00003807ffffffff 0x000000000014220c\n\
                     0x0000000000000000 0x0000000000000000 0x0000000000000000\n",
                ),
                ("iommu_group/type", "DMA-FQ\n"),
            ],
        );
        assert!(gpu.is_nvidia_gpu() && !gpu.has_p2p_memory && gpu.acs.is_none());
        assert_eq!((gpu.address.as_str(), gpu.numa_node), ("0000:18:00.0", Some(1)));
        assert_eq!(gpu.bar1_bytes, Some(32 << 30));
        assert_eq!(gpu.link.unwrap().to_string(), "16 GT/s x8 (at most 32 GT/s x16)");
        assert_eq!(gpu.iommu.as_deref(), Some("DMA-FQ"));
        assert_eq!(gpu.chain.len(), 5, "{:?}", gpu.chain);
        assert_eq!(devices(&fake.root()).len(), 1);
    }

    #[test]
    fn devices_without_link_or_node_lack_only_these() {
        let fake = Fake::new();
        let files = [
            ("vendor", "0x1af4"),
            ("numa_node", "-1"),
            ("current_link_speed", "Unknown"),
            ("current_link_width", "255"),
            ("resource", "0x0 0x0 0x0\n"),
        ];
        let disk = device(&fake, "/sys/devices/pci0000:00/0000:00:02.0", &files);
        assert_eq!((disk.numa_node, disk.link, disk.bar1_bytes), (None, None, None));
    }

    #[test]
    fn pci_device_is_the_last_address_of_a_path() {
        let fake = Fake::new();
        fake.folder(&format!("{GPU}/virtio1/block/vda")).folder("/sys/devices/virtual/block/md0");
        let above = |path: &str| above(&fake.root().at(path)).map(|path| root::name(&path));
        assert_eq!(above(&format!("{GPU}/virtio1/block/vda")).as_deref(), Some("0000:18:00.0"));
        assert_eq!((above("/sys/devices/virtual/block/md0"), above("/sys/none")), (None, None));
        for name in ["nvme0n1", "pci0000:00", "0000:00:02", "a.b", "00000:18:00.0x", "cafe:ba:be.g"] {
            assert!(!is_address(name), "{name}");
        }
        assert!(is_address("10000:e1:00.0"), "a domain of five digits");
    }

    #[test]
    fn distance_follows_shared_bridges_and_nodes() {
        let gpu =
            at(&["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"], Some(0));
        for (chain, node, expected) in [
            (
                &["pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:01.0", "x"][..],
                Some(0),
                Distance::SameSwitch,
            ),
            (&["pci0000:15", "0000:15:01.0", "x"], Some(0), Distance::SameRootPort),
            (&["pci0000:15", "0000:15:02.0", "x"], None, Distance::SameNode),
            (&["pci0000:37", "0000:37:01.0", "x"], Some(0), Distance::SameNode),
            (&["pci0000:97", "0000:97:01.0", "x"], Some(1), Distance::AcrossNodes),
            (&["pci0000:97", "0000:97:01.0", "x"], None, Distance::Unknown),
        ] {
            assert_eq!(Distance::between(&gpu, &at(chain, node)), expected, "{chain:?}");
            assert_eq!(Distance::between(&at(chain, node), &gpu), expected, "{chain:?}");
        }
    }
}
