//! Causes that lie in network cards, their drivers, and the addresses that libcufile is given.

use serde_json::Value;

use super::Facts;
use crate::check::effect::Effect;
use crate::check::network::Nic;
use crate::check::storage::Storage;

/// The oldest MLNX_OFED for GPUDirect Storage.
const LEAST_OFED: (u32, u32) = (4, 6);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkCause {
    /// No network card with RDMA.
    NoCard,
    /// No port of a card with RDMA is up.
    PortsDown(Vec<String>),
    /// The kernel's own, or this old version.
    OldDriver(Option<String>),
    /// A WekaFS mount, but no address of a card.
    NoAddresses,
    /// Addresses of cards that no interface has, and the key that lists them.
    ForeignAddresses(Vec<String>, String),
    /// All addresses belong to this card, though there are more.
    OneCard(String),
    /// A port of a ConnectX-5 or ConnectX-6 that is in Ethernet mode.
    Ethernet { port: String, generation: u32 },
}

impl NetworkCause {
    pub fn all(facts: Facts<'_>) -> Vec<Self> {
        let Facts { machine, target, storage } = facts;
        if !storage.is_remote() {
            return vec![];
        }
        let cards: Vec<&Nic> = machine.nics.iter().filter(|nic| nic.has_rdma).collect();
        let mut causes = Vec::new();
        if !target.is_direct() {
            let ports: Vec<_> = cards.iter().flat_map(|card| &card.ports).collect();
            if cards.is_empty() {
                causes.push(Self::NoCard);
            } else if !ports.is_empty() && ports.iter().all(|port| !port.is_up) {
                causes.push(Self::PortsDown(ports.iter().map(|port| port.name.clone()).collect()));
            }
            let mlx5 = machine.kernel.modules.mlx5.as_ref();
            let old = mlx5.filter(|mlx5| mlx5.numbers().is_none_or(|numbers| numbers < LEAST_OFED));
            causes.extend(old.map(|mlx5| Self::OldDriver(mlx5.version.clone())));
        }
        causes.extend(addresses(facts, &cards));
        for card in cards {
            let Some(generation) = card.connectx() else { continue };
            let ports = card.ports.iter().filter(|port| port.is_up && port.link_layer == "Ethernet");
            causes.extend(ports.map(|port| Self::Ethernet { port: port.name.clone(), generation }));
        }
        causes
    }

    pub fn effect(&self) -> Effect {
        match self {
            Self::NoCard | Self::PortsDown(_) | Self::OldDriver(_) | Self::NoAddresses => Effect::Stages,
            Self::ForeignAddresses(..) => Effect::Limits,
            Self::OneCard(_) | Self::Ethernet { .. } => Effect::Slows,
        }
    }

    pub fn key(&self) -> &'static str {
        match self {
            Self::NoCard => "no-rdma-card",
            Self::PortsDown(_) => "rdma-ports-down",
            Self::OldDriver(_) => "old-network-driver",
            Self::NoAddresses => "no-rdma-addresses",
            Self::ForeignAddresses(..) => "foreign-rdma-addresses",
            Self::OneCard(_) => "one-rdma-card",
            Self::Ethernet { .. } => "ethernet-mode",
        }
    }

    pub fn problem(&self) -> String {
        match self {
            Self::NoCard => "there is no network card with RDMA".to_owned(),
            Self::PortsDown(ports) => {
                format!("no port of a network card with RDMA is up ({})", ports.join(", "))
            }
            Self::OldDriver(None) => {
                "the driver of the network cards (mlx5_core) is the kernel's own, without GPUDirect Storage"
                    .to_owned()
            }
            Self::OldDriver(Some(version)) => {
                format!("the driver of the network cards (mlx5_core) is of MLNX_OFED {version}")
            }
            Self::NoAddresses => {
                "properties.rdma_dev_addr_list of cufile.json is empty, so libcufile has no card for WekaFS"
                    .to_owned()
            }
            Self::ForeignAddresses(addresses, key) => {
                format!("{key} has addresses that no interface here has: {}", addresses.join(", "))
            }
            Self::OneCard(card) => {
                format!("all addresses of rdma_dev_addr_list belong to one network card ({card})")
            }
            Self::Ethernet { port, generation } => {
                format!("{port} of a ConnectX-{generation} is in Ethernet mode")
            }
        }
    }

    pub fn remedy(&self) -> String {
        let text = match self {
            Self::NoCard => "the direct path needs one, preferably under the GPU's PCIe switch",
            Self::PortsDown(_) => {
                "check the cables and the subnet manager; `ibstat` shows the state of each port"
            }
            Self::OldDriver(_) => {
                "install DOCA-OFED, or MLNX_OFED 4.6 or newer (5.1 for NFS), with --enable-gds; `ofed_info -s` then \
                 shows it; load nvidia-fs after it"
            }
            Self::NoAddresses => {
                "list there the IP address of each card that is near a GPU, such as [\"172.16.8.25\", \"172.16.8.26\"]"
            }
            Self::ForeignAddresses(..) => "`ip -brief address` lists those that this host has",
            Self::OneCard(_) => "add addresses of the others: the slots of one card limit the bandwidth",
            Self::Ethernet { .. } => {
                "NVIDIA advises InfiniBand mode for this card (`mlxconfig -d DEVICE set LINK_TYPE_P1=1`), where the \
                 network has it"
            }
        };
        text.to_owned()
    }
}

fn addresses(facts: Facts<'_>, cards: &[&Nic]) -> Vec<NetworkCause> {
    let Facts { machine, target, storage } = facts;
    let of_file_system = format!("fs.{}.rdma_dev_addr_list", storage.key());
    let keys = [of_file_system, "properties.rdma_dev_addr_list".to_owned()];
    let list = |key: &String| {
        let values = machine.configuration.change(key)?.value.as_array()?;
        let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        (!texts.is_empty()).then(|| (key.clone(), texts))
    };
    let Some((key, listed)) = keys.iter().find_map(list) else {
        let is_needed = *storage == Storage::Weka && !target.is_direct();
        return is_needed.then_some(NetworkCause::NoAddresses).into_iter().collect();
    };
    let interface = |address: &str| {
        machine.addresses.iter().find(|(_, found)| found == address).map(|(interface, _)| interface)
    };
    let card = |address: &str| {
        let interface = interface(address)?;
        cards.iter().find(|card| card.names.contains(interface)).map(|card| card.names.join(" "))
    };
    let mut causes = Vec::new();
    let foreign: Vec<String> = listed
        .iter()
        .filter(|address| interface(address).is_none())
        .map(|&address| address.to_owned())
        .collect();
    // A process without interfaces, as in some containers, tells nothing.
    if !foreign.is_empty() && !machine.addresses.is_empty() {
        causes.push(NetworkCause::ForeignAddresses(foreign, key));
    }
    let mut used: Vec<String> = listed.iter().filter_map(|address| card(address)).collect();
    used.dedup();
    if let [only] = &used[..]
        && cards.len() > 1
    {
        causes.push(NetworkCause::OneCard(only.clone()));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::cufile_json::Change;
    use crate::check::machine::Machine;
    use crate::check::modules::Mlx5;
    use crate::check::network::Port;
    use crate::check::pci::PciDevice;
    use crate::check::right_facts::{causes_of, good, machine, mounted, with};
    use crate::check::target::Target;
    use gpufile::RouteKind;

    fn card(name: &str, model: u32, link_layer: &str, is_up: bool) -> Nic {
        let port = Port { name: format!("{name} port 1"), link_layer: link_layer.to_owned(), is_up };
        let pci = PciDevice { vendor: 0x15b3, model, ..PciDevice::default() };
        Nic { names: vec![name.to_owned(), format!("ib{name}")], has_rdma: true, ports: vec![port], pci }
    }

    fn with_cards(cards: Vec<Nic>) -> Machine {
        with(machine(), |machine| machine.nics = cards)
    }

    fn weka(is_direct: bool) -> Target {
        let route = if is_direct { RouteKind::Gds } else { RouteKind::Posix };
        with(mounted("wekafs", &[]), |target| target.route = route)
    }

    #[track_caller]
    fn has(machine: &Machine, target: &Target, key: &str, problem: &str, remedy: &str) {
        let found = causes_of(machine, target);
        let Some(text) = found.iter().find(|(found, ..)| *found == key) else { panic!("{key}: {found:?}") };
        assert!(text.1.contains(problem) && text.2.contains(remedy), "{text:?}");
    }

    #[track_caller]
    fn lacks(machine: &Machine, target: &Target, key: &str) {
        let found = causes_of(machine, target);
        assert!(found.iter().all(|(found, ..)| *found != key), "{found:?}");
    }

    #[test]
    fn ethernet_mode_of_older_cards_is_named() {
        let ethernet = with_cards(vec![card("mlx5_0", 0x101b, "Ethernet", true)]);
        has(&ethernet, &weka(true), "ethernet-mode", "mlx5_0 port 1 of a ConnectX-6", "InfiniBand");
        lacks(&ethernet, &good(), "ethernet-mode");
        lacks(&with_cards(vec![card("mlx5_0", 0x101b, "InfiniBand", true)]), &weka(true), "ethernet-mode");
        lacks(&with_cards(vec![card("mlx5_0", 0x1021, "Ethernet", true)]), &weka(true), "ethernet-mode");
    }

    #[test]
    fn ports_without_link_are_named() {
        let down = with_cards(vec![card("mlx5_0", 0x101b, "InfiniBand", false)]);
        has(&down, &weka(false), "rdma-ports-down", "mlx5_0 port 1", "ibstat");
        let one_up = with(down, |machine| machine.nics.push(card("mlx5_1", 0x101b, "InfiniBand", true)));
        lacks(&one_up, &weka(false), "rdma-ports-down");
        has(&with_cards(vec![]), &weka(false), "no-rdma-card", "no network card", "switch");
    }

    #[test]
    fn old_and_own_drivers_of_cards_are_named() {
        let driven = |version: Option<&str>| {
            with(with_cards(vec![card("mlx5_0", 0x1021, "InfiniBand", true)]), |machine| {
                machine.kernel.modules.mlx5 = Some(Mlx5 { version: version.map(str::to_owned) });
            })
        };
        has(&driven(None), &weka(false), "old-network-driver", "kernel's own", "DOCA-OFED");
        has(&driven(Some("4.5-1.0.1")), &weka(false), "old-network-driver", "MLNX_OFED 4.5-1.0.1", "4.6");
        lacks(&driven(Some("4.6-1.0.1")), &weka(false), "old-network-driver");
        lacks(&driven(Some("24.10-0.7.0")), &weka(false), "old-network-driver");
        lacks(&driven(None), &weka(true), "old-network-driver");
    }

    #[test]
    fn addresses_of_cards_are_compared_with_interfaces() {
        let two =
            vec![card("mlx5_0", 0x1021, "InfiniBand", true), card("mlx5_1", 0x1021, "InfiniBand", true)];
        let listing = |listed: &[&str], key: &str| {
            with(with_cards(two.clone()), |machine| {
                let address = |interface: &str, address: &str| (interface.to_owned(), address.to_owned());
                machine.addresses = vec![address("ibmlx5_0", "10.0.0.1"), address("ibmlx5_1", "10.0.0.2")];
                let (key, from) = (key.to_owned(), "/etc/cufile.json".to_owned());
                machine.configuration.changed =
                    vec![Change { key, value: json!(listed), default: None, from }];
            })
        };
        let key = "properties.rdma_dev_addr_list";
        has(&listing(&[], key), &weka(false), "no-rdma-addresses", "is empty", "172.16.8.25");
        lacks(&listing(&[], key), &weka(true), "no-rdma-addresses");
        for of_file_system in [key, "fs.weka.rdma_dev_addr_list"] {
            let both = listing(&["10.0.0.1", "10.0.0.2"], of_file_system);
            for key in ["no-rdma-addresses", "foreign-rdma-addresses", "one-rdma-card"] {
                lacks(&both, &weka(false), key);
            }
        }
        has(
            &listing(&["10.0.0.1", "10.9.9.9"], key),
            &weka(true),
            "foreign-rdma-addresses",
            "10.9.9.9",
            "ip -brief",
        );
        has(&listing(&["10.0.0.1"], key), &weka(true), "one-rdma-card", "(mlx5_0 ibmlx5_0)", "others");
    }
}
