//! A block device with its parts from sysfs: partitions, device mapper, md, and the disks at the bottom.

use std::fmt;
use std::path::{Path, PathBuf};

use super::pci;
use super::root::{self, Root};

#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    pub name: String,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Partition,
    /// A logical volume of LVM, by its device mapper name.
    Lvm(String),
    /// Another device of the device mapper: its name, and its sort, such as `crypt` or `mpath`.
    Mapper(String, String),
    /// A software RAID of this level.
    Md(String),
    Loop,
    Disk(Disk),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Disk {
    pub bus: Bus,
    /// The PCI devices through which the disk is reached.
    pub pci: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bus {
    NvmePcie,
    /// NVMe over RDMA, TCP or Fibre Channel.
    NvmeFabrics,
    Scsi,
    Virtio,
    #[default]
    Other,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.kind {
            Kind::Partition => write!(f, "{name} (partition)"),
            Kind::Lvm(volume) => write!(f, "{name} (LVM {volume})"),
            Kind::Mapper(volume, sort) if sort.is_empty() => write!(f, "{name} (device mapper {volume})"),
            Kind::Mapper(volume, sort) => write!(f, "{name} (device mapper {volume}, {sort})"),
            Kind::Md(level) => write!(f, "{name} (md {level})"),
            Kind::Loop => write!(f, "{name} (loop)"),
            Kind::Disk(disk) => write!(f, "{name} ({})", disk.bus.name()),
        }
    }
}

impl Bus {
    pub fn name(self) -> &'static str {
        match self {
            Bus::NvmePcie => "NVMe",
            Bus::NvmeFabrics => "NVMe over fabrics",
            Bus::Scsi => "SCSI",
            Bus::Virtio => "virtio",
            Bus::Other => "disk",
        }
    }
}

/// The most layers that are followed, against links in a circle.
const MOST_LAYERS: usize = 256;

/// Returns the layers, top first, each followed by those below it; none where sysfs does not show the device.
pub fn stack(root: &Root, (major, minor): (u32, u32)) -> Vec<Layer> {
    let mut layers = Vec::new();
    if let Ok(folder) = root.at(&format!("/sys/dev/block/{major}:{minor}")).canonicalize() {
        add(&folder, &mut layers);
    }
    layers
}

pub fn stack_of_name(root: &Root, name: &str) -> Vec<Layer> {
    let mut layers = Vec::new();
    if let Ok(folder) = root.at(&format!("/sys/class/block/{name}")).canonicalize() {
        add(&folder, &mut layers);
    }
    layers
}

pub fn disks(root: &Root) -> Vec<(String, Disk)> {
    let folders = root.list("/sys/block").into_iter().filter_map(|link| link.canonicalize().ok());
    let disks = folders.filter_map(|folder| match kind(&folder) {
        Kind::Disk(disk) if !disk.pci.is_empty() => Some((root::name(&folder), disk)),
        _ => None,
    });
    disks.collect()
}

fn add(folder: &Path, layers: &mut Vec<Layer>) {
    let name = root::name(folder);
    if layers.len() >= MOST_LAYERS || layers.iter().any(|layer| layer.name == name) {
        return;
    }
    let kind = kind(folder);
    let below: Vec<PathBuf> = match kind {
        Kind::Partition => folder.parent().map(Path::to_owned).into_iter().collect(),
        _ => root::list(&folder.join("slaves")).iter().filter_map(|link| link.canonicalize().ok()).collect(),
    };
    layers.push(Layer { name, kind });
    for folder in below {
        add(&folder, layers);
    }
}

fn kind(folder: &Path) -> Kind {
    let text = |name: &str| root::text(&folder.join(name));
    if folder.join("partition").exists() {
        return Kind::Partition;
    }
    if folder.join("dm").exists() {
        let name = text("dm/name").unwrap_or_default();
        // The first word of the UUID names the subsystem: `LVM-`, `CRYPT-LUKS2-`, `mpath-`.
        let uuid = text("dm/uuid").unwrap_or_default();
        let sort = uuid.split('-').next().unwrap_or_default().to_lowercase();
        return if sort == "lvm" { Kind::Lvm(name) } else { Kind::Mapper(name, sort) };
    }
    if folder.join("md").exists() {
        return Kind::Md(text("md/level").unwrap_or_else(|| "of unknown level".to_owned()));
    }
    if folder.join("loop").exists() {
        return Kind::Loop;
    }
    Kind::Disk(disk(folder))
}

fn disk(folder: &Path) -> Disk {
    let name = root::name(folder);
    if name.starts_with("nvme") {
        return nvme(folder);
    }
    let is_virtio = folder.components().any(|part| part.as_os_str().to_string_lossy().starts_with("virtio"));
    let bus = match name.as_str() {
        _ if is_virtio => Bus::Virtio,
        name if name.starts_with("sd") => Bus::Scsi,
        _ => Bus::Other,
    };
    Disk { bus, pci: address_above(folder).into_iter().collect() }
}

/// Returns a disk; with the kernel's multipath, it belongs to a subsystem that holds its controllers.
fn nvme(folder: &Path) -> Disk {
    let device = folder.join("device");
    let is_controller = |path: &PathBuf| {
        let number = root::name(path).strip_prefix("nvme").map(str::to_owned);
        number.is_some_and(|number| !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit()))
    };
    let mut controllers: Vec<PathBuf> = root::list(&device).into_iter().filter(is_controller).collect();
    if controllers.is_empty() {
        controllers.push(device);
    }
    let over_fabrics = controllers
        .iter()
        .filter_map(|controller| root::text(&controller.join("transport")))
        .any(|transport| transport != "pcie");
    let bus = if over_fabrics { Bus::NvmeFabrics } else { Bus::NvmePcie };
    Disk { bus, pci: controllers.iter().filter_map(|controller| address_above(controller)).collect() }
}

fn address_above(path: &Path) -> Option<String> {
    pci::above(path).map(|folder| root::name(&folder))
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    const PORT: &str = "/sys/devices/pci0000:15/0000:15:01.0";

    fn nvme_disk(fake: &Fake, number: u32) -> String {
        let controller = format!("{PORT}/0000:1{number}:00.0/nvme/nvme{number}");
        let disk = format!("{controller}/nvme{number}n1");
        fake.file(&format!("{controller}/transport"), "pcie\n");
        fake.file(&format!("{disk}/nvme{number}n1p1/partition"), "1\n");
        fake.link(&format!("{disk}/device"), &controller);
        fake.link(&format!("/sys/class/block/nvme{number}n1"), &disk);
        fake.link(&format!("/sys/dev/block/259:{number}"), &format!("{disk}/nvme{number}n1p1"));
        disk
    }

    fn texts(layers: &[Layer]) -> Vec<String> {
        layers.iter().map(Layer::to_string).collect()
    }

    #[test]
    fn lvm_on_md_on_partitions_leads_to_the_disks() {
        let fake = Fake::new();
        let (dm, md) = ("/sys/devices/virtual/block/dm-0", "/sys/devices/virtual/block/md127");
        fake.file(&format!("{dm}/dm/name"), "vg-data\n").file(&format!("{dm}/dm/uuid"), "LVM-abc\n");
        fake.link(&format!("{dm}/slaves/md127"), md).file(&format!("{md}/md/level"), "raid0\n");
        for number in [2, 3] {
            let disk = nvme_disk(&fake, number);
            let link = format!("{md}/slaves/nvme{number}n1p1");
            fake.link(&link, &format!("{disk}/nvme{number}n1p1"));
        }
        fake.link("/sys/dev/block/253:0", dm);
        let layers = stack(&fake.root(), (253, 0));
        assert_eq!(
            texts(&layers),
            [
                "dm-0 (LVM vg-data)",
                "md127 (md raid0)",
                "nvme2n1p1 (partition)",
                "nvme2n1 (NVMe)",
                "nvme3n1p1 (partition)",
                "nvme3n1 (NVMe)",
            ]
        );
        let Kind::Disk(disk) = &layers[5].kind else { panic!("{layers:?}") };
        assert_eq!((disk.bus, disk.pci.as_slice()), (Bus::NvmePcie, &["0000:13:00.0".to_owned()][..]));
        assert_eq!(texts(&stack_of_name(&fake.root(), "nvme2n1")), ["nvme2n1 (NVMe)"]);
        fake.link("/sys/block/dm-0", dm)
            .link("/sys/block/nvme3n1", &format!("{PORT}/0000:13:00.0/nvme/nvme3/nvme3n1"));
        let names: Vec<_> = disks(&fake.root()).into_iter().map(|(name, disk)| (name, disk.pci)).collect();
        assert_eq!(names, [("nvme3n1".to_owned(), vec!["0000:13:00.0".to_owned()])]);
    }

    #[test]
    fn multipath_nvme_has_every_controller() {
        let fake = Fake::new();
        let subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0";
        fake.folder(&format!("{subsystem}/nvme0n1"));
        fake.link(&format!("{subsystem}/nvme0n1/device"), subsystem);
        for (number, transport) in [(0, "pcie"), (1, "rdma")] {
            let controller = format!("{PORT}/0000:2{number}:00.0/nvme/nvme{number}");
            fake.file(&format!("{controller}/transport"), transport);
            fake.link(&format!("{subsystem}/nvme{number}"), &controller);
        }
        fake.link("/sys/dev/block/259:0", &format!("{subsystem}/nvme0n1"));
        let [Layer { kind: Kind::Disk(disk), .. }] = &stack(&fake.root(), (259, 0))[..] else { panic!() };
        assert_eq!((disk.bus, disk.pci.len()), (Bus::NvmeFabrics, 2));
    }

    #[test]
    fn mapper_loop_and_other_disks_have_their_kinds() {
        let fake = Fake::new();
        let block = "/sys/devices/virtual/block";
        fake.file(&format!("{block}/dm-1/dm/name"), "secret")
            .file(&format!("{block}/dm-1/dm/uuid"), "CRYPT-LUKS2-1-x");
        fake.file(&format!("{block}/dm-2/dm/name"), "raw");
        fake.file(&format!("{block}/loop3/loop/backing_file"), "/x").folder(&format!("{block}/md0/md"));
        fake.folder("/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda");
        fake.folder("/sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda");
        fake.folder(&format!("{block}/ram0"));
        for (minor, name, expected) in [
            (0, "virtual/block/dm-1", "dm-1 (device mapper secret, crypt)"),
            (1, "virtual/block/dm-2", "dm-2 (device mapper raw)"),
            (2, "virtual/block/loop3", "loop3 (loop)"),
            (3, "virtual/block/md0", "md0 (md of unknown level)"),
            (4, "pci0000:00/0000:00:02.0/virtio1/block/vda", "vda (virtio)"),
            (5, "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda", "sda (SCSI)"),
            (6, "virtual/block/ram0", "ram0 (disk)"),
        ] {
            fake.link(&format!("/sys/dev/block/9:{minor}"), &format!("/sys/devices/{name}"));
            assert_eq!(texts(&stack(&fake.root(), (9, minor))), [expected]);
        }
    }

    #[test]
    fn missing_sysfs_and_circles_end() {
        let fake = Fake::new();
        assert!(stack(&fake.root(), (8, 0)).is_empty());
        let dm = "/sys/devices/virtual/block/dm-0";
        fake.folder(&format!("{dm}/dm"))
            .link(&format!("{dm}/slaves/dm-0"), dm)
            .link("/sys/dev/block/253:0", dm);
        assert_eq!(stack(&fake.root(), (253, 0)).len(), 1);
    }
}
