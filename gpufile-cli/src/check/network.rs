//! Network cards on the PCI bus, from sysfs.

use super::pci::{self, PciDevice};
use super::root::{self, Root};

/// A network card.
#[derive(Debug, Clone, PartialEq)]
pub struct Nic {
    /// The names of the interfaces and of the RDMA device, such as `mlx5_0` and `ib0`.
    pub names: Vec<String>,
    pub has_rdma: bool,
    pub pci: PciDevice,
}

/// Returns the network cards, in the order of their addresses.
pub fn cards(root: &Root) -> Vec<Nic> {
    let mut cards: Vec<Nic> = Vec::new();
    for (class, has_rdma) in [("infiniband", true), ("net", false)] {
        for entry in root.list(&format!("/sys/class/{class}")) {
            // `device` leads to the hardware. Bridges and loopbacks have none.
            let Some(folder) = pci::above(&entry.join("device")) else { continue };
            let Some(device) = PciDevice::of(&folder) else { continue };
            match cards.iter_mut().find(|card| card.pci.address == device.address) {
                Some(card) => {
                    card.names.push(root::name(&entry));
                    card.has_rdma |= has_rdma;
                }
                None => cards.push(Nic { names: vec![root::name(&entry)], has_rdma, pci: device }),
            }
        }
    }
    cards.sort_by(|one, other| one.pci.address.cmp(&other.pci.address));
    cards
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    #[test]
    fn interfaces_of_one_card_are_joined() {
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
        fake.folder("/sys/class/net/lo");
        let cards = cards(&fake.root());
        let found: Vec<_> = cards.iter().map(|card| (card.names.join(" "), card.has_rdma)).collect();
        assert_eq!(found, [("eth0".to_owned(), false), ("mlx5_0 ib0".to_owned(), true)]);
    }
}
