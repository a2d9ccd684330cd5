//! Network cards on the PCI bus, from sysfs.

use std::path::Path;

use super::pci::{self, PciDevice};
use super::root::{self, Root};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Nic {
    /// The names of the interfaces and of the RDMA device, such as `mlx5_0` and `ib0`.
    pub names: Vec<String>,
    pub has_rdma: bool,
    pub ports: Vec<Port>,
    pub pci: PciDevice,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The name of the RDMA device, and the number of the port.
    pub name: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    pub is_up: bool,
}

impl Nic {
    /// Returns the generation of a ConnectX-5 or ConnectX-6.
    pub fn connectx(&self) -> Option<u32> {
        match (self.pci.vendor, self.pci.model) {
            (0x15b3, 0x1017..=0x101a) => Some(5),
            (0x15b3, 0x101b | 0x101c) => Some(6),
            _ => None,
        }
    }
}

pub fn cards(root: &Root) -> Vec<Nic> {
    let mut cards: Vec<Nic> = Vec::new();
    for (class, has_rdma) in [("infiniband", true), ("net", false)] {
        for entry in root.list(&format!("/sys/class/{class}")) {
            // `device` leads to the hardware. Bridges and loopbacks have none.
            let Some(folder) = pci::above(&entry.join("device")) else { continue };
            let Some(device) = PciDevice::of(&folder) else { continue };
            let known = cards.iter().position(|card| card.pci.address == device.address);
            let at = known.unwrap_or_else(|| {
                cards.push(Nic { pci: device, ..Nic::default() });
                cards.len() - 1
            });
            cards[at].names.push(root::name(&entry));
            cards[at].has_rdma |= has_rdma;
            cards[at].ports.extend(ports(&entry));
        }
    }
    cards.sort_by(|one, other| one.pci.address.cmp(&other.pci.address));
    cards
}

/// Returns the ports, of which a network interface has none.
fn ports(device: &Path) -> Vec<Port> {
    let folders = root::list(&device.join("ports"));
    let ports = folders.iter().map(|folder| Port {
        name: format!("{} port {}", root::name(device), root::name(folder)),
        link_layer: root::text(&folder.join("link_layer")).unwrap_or_else(|| "unknown".to_owned()),
        // The file has a number and a word: `4: ACTIVE`.
        is_up: root::text(&folder.join("state")).is_some_and(|state| state.ends_with("ACTIVE")),
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    #[test]
    fn interfaces_and_ports_of_one_card_are_joined() {
        let fake = Fake::new();
        let card = "/sys/devices/pci0000:37/0000:37:01.0/0000:38:00.0";
        let other = "/sys/devices/pci0000:00/0000:00:03.0";
        for device in [card, other] {
            fake.file(&format!("{device}/vendor"), "0x15b3");
        }
        fake.folder(&format!("{other}/virtio0"));
        for (entry, device) in [
            ("infiniband/mlx5_0", card.to_owned()),
            ("net/ib0", card.to_owned()),
            ("net/eth0", format!("{other}/virtio0")),
        ] {
            fake.link(&format!("/sys/class/{entry}/device"), &device);
        }
        fake.folder("/sys/class/net/lo").file(&format!("{card}/device"), "0x101b\n");
        for (port, layer, state) in [(1, "InfiniBand", "4: ACTIVE"), (2, "Ethernet", "1: DOWN")] {
            let folder = format!("/sys/class/infiniband/mlx5_0/ports/{port}");
            fake.file(&format!("{folder}/link_layer"), layer).file(&format!("{folder}/state"), state);
        }
        let cards = cards(&fake.root());
        let found: Vec<_> = cards.iter().map(|card| (card.names.join(" "), card.has_rdma)).collect();
        assert_eq!(found, [("eth0".to_owned(), false), ("mlx5_0 ib0".to_owned(), true)]);
        let ports: Vec<_> =
            cards[1].ports.iter().map(|port| (port.name.as_str(), &*port.link_layer, port.is_up)).collect();
        assert_eq!(ports, [("mlx5_0 port 1", "InfiniBand", true), ("mlx5_0 port 2", "Ethernet", false)]);
        assert_eq!((cards[0].ports.len(), cards[0].connectx(), cards[1].connectx()), (0, None, Some(6)));
    }
}
