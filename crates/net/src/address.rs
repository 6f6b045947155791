//! What kind of address an address is.
//!
//! The ranges are those of the IANA registries of special-purpose addresses (RFC 6890 and its successors), and the
//! addresses at which clouds hand out credentials. An address that carries an IPv4 address inside is judged by both:
//! mapped addresses and NAT64 by what they carry, all other transition forms are refused whatever they carry.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an address leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// To the public network.
    Public,
    /// Somewhere a model has no business.
    Restricted(Restriction),
}

/// Why an address is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Restriction {
    /// A cloud's metadata service, which gives credentials to whoever asks. Refused even where private addresses are
    /// allowed, unless it is listed itself.
    Metadata,
    /// This machine.
    Loopback,
    /// `0.0.0.0/8` and `::`, which many systems take for this machine.
    Unspecified,
    /// A network of one's own: RFC 1918, unique local, site-local.
    Private,
    /// Behind a provider's NAT, `100.64.0.0/10`.
    Shared,
    /// The link that this machine is on.
    LinkLocal,
    /// Many receivers.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// Kept for documents.
    Documentation,
    /// Kept for measuring.
    Benchmarking,
    /// A form that carries an IPv4 address: compatible, translated, 6to4, Teredo, local NAT64, ISATAP.
    Transition,
    /// Reserved for other uses, or not given to anybody yet.
    Reserved,
}

impl Restriction {
    /// A few words for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Metadata => "cloud metadata",
            Self::Loopback => "loopback",
            Self::Unspecified => "unspecified",
            Self::Private => "private",
            Self::Shared => "carrier NAT",
            Self::LinkLocal => "link-local",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Documentation => "documentation",
            Self::Benchmarking => "benchmarking",
            Self::Transition => "IPv4 in IPv6",
            Self::Reserved => "reserved",
        }
    }
}

/// The kind of an address.
pub fn classify(address: IpAddr) -> Class {
    let restriction = match address {
        IpAddr::V4(v4) => restriction_v4(v4),
        IpAddr::V6(v6) => restriction_v6(v6),
    };
    restriction.map_or(Class::Public, Class::Restricted)
}

/// A network as its first address and the length of its prefix.
type V4Range = (Ipv4Addr, u32, Restriction);

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u32, restriction: Restriction) -> V4Range {
    (Ipv4Addr::new(a, b, c, d), prefix, restriction)
}

/// Searched in order: what is more special stands first.
const V4: &[V4Range] = &[
    // Amazon, Google, Microsoft and others; Amazon's tasks and pods; Alibaba; Oracle; Microsoft's host, a public address.
    v4(169, 254, 169, 254, 32, Restriction::Metadata),
    v4(169, 254, 170, 2, 32, Restriction::Metadata),
    v4(169, 254, 170, 23, 32, Restriction::Metadata),
    v4(100, 100, 100, 200, 32, Restriction::Metadata),
    v4(192, 0, 0, 192, 32, Restriction::Metadata),
    v4(168, 63, 129, 16, 32, Restriction::Metadata),
    v4(0, 0, 0, 0, 8, Restriction::Unspecified),
    v4(10, 0, 0, 0, 8, Restriction::Private),
    v4(100, 64, 0, 0, 10, Restriction::Shared),
    v4(127, 0, 0, 0, 8, Restriction::Loopback),
    v4(169, 254, 0, 0, 16, Restriction::LinkLocal),
    v4(172, 16, 0, 0, 12, Restriction::Private),
    v4(192, 0, 0, 0, 24, Restriction::Reserved),
    v4(192, 0, 2, 0, 24, Restriction::Documentation),
    v4(192, 88, 99, 0, 24, Restriction::Transition),
    v4(192, 168, 0, 0, 16, Restriction::Private),
    v4(198, 18, 0, 0, 15, Restriction::Benchmarking),
    v4(198, 51, 100, 0, 24, Restriction::Documentation),
    v4(203, 0, 113, 0, 24, Restriction::Documentation),
    v4(224, 0, 0, 0, 4, Restriction::Multicast),
    v4(255, 255, 255, 255, 32, Restriction::Broadcast),
    v4(240, 0, 0, 0, 4, Restriction::Reserved),
];

fn restriction_v4(address: Ipv4Addr) -> Option<Restriction> {
    let bits = u32::from(address);
    let inside = |range: &&V4Range| bits >> (32 - range.1) == u32::from(range.0) >> (32 - range.1);
    V4.iter().find(inside).map(|(_, _, restriction)| *restriction)
}

type V6Range = (Ipv6Addr, u32, Restriction);

const fn v6(head: [u16; 4], prefix: u32, restriction: Restriction) -> V6Range {
    let [a, b, c, d] = head;
    (Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), prefix, restriction)
}

const V6: &[V6Range] = &[
    (Ipv6Addr::UNSPECIFIED, 128, Restriction::Unspecified),
    (Ipv6Addr::LOCALHOST, 128, Restriction::Loopback),
    // Amazon's and Google's metadata services.
    (
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        128,
        Restriction::Metadata,
    ),
    (
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
        128,
        Restriction::Metadata,
    ),
    (
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
        128,
        Restriction::Metadata,
    ),
    v6([0xfc00, 0, 0, 0], 7, Restriction::Private),
    v6([0xfe80, 0, 0, 0], 10, Restriction::LinkLocal),
    v6([0xfec0, 0, 0, 0], 10, Restriction::Private),
    v6([0xff00, 0, 0, 0], 8, Restriction::Multicast),
    // Teredo, ORCHID, benchmarking and the like; nothing in here is a web server.
    v6([0x2001, 0, 0, 0], 32, Restriction::Transition),
    v6([0x2001, 2, 0, 0], 48, Restriction::Benchmarking),
    v6([0x2001, 0, 0, 0], 23, Restriction::Reserved),
    v6([0x2001, 0xdb8, 0, 0], 32, Restriction::Documentation),
    v6([0x3fff, 0, 0, 0], 20, Restriction::Documentation),
    v6([0x2002, 0, 0, 0], 16, Restriction::Transition),
    v6([0x64, 0xff9b, 1, 0], 48, Restriction::Transition),
];

fn restriction_v6(address: Ipv6Addr) -> Option<Restriction> {
    let segments = address.segments();
    let carried = Ipv4Addr::from(((u32::from(segments[6])) << 16) | u32::from(segments[7]));
    match segments {
        // Mapped: the system connects to the IPv4 address itself. NAT64: a gateway does.
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => return restriction_v4(carried),
        _ => {}
    }
    let bits = u128::from(address);
    let inside = |range: &&V6Range| bits >> (128 - range.1) == u128::from(range.0) >> (128 - range.1);
    if let Some((_, _, restriction)) = V6.iter().find(inside) {
        // What is inside decides only between two refusals: metadata stays refused where private is allowed.
        let of_carried = embedded(address).and_then(restriction_v4);
        return match of_carried {
            Some(Restriction::Metadata) => Some(Restriction::Metadata),
            _ => Some(*restriction),
        };
    }
    match embedded(address).map(restriction_v4) {
        Some(Some(restriction)) => return Some(restriction),
        // Compatible and translated: nobody uses them for public addresses.
        Some(None) if segments[0] == 0 => return Some(Restriction::Transition),
        _ => {}
    }
    // Only 2000::/3 has been given out.
    (segments[0] >> 13 != 1).then_some(Restriction::Reserved)
}

/// The IPv4 address in an IPv6 one, in all the forms that carry one but mapped and NAT64.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        // Compatible (RFC 4291, given up) and translated (RFC 2765).
        [0, 0, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => Some(join(high, low)),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => Some(join(high, low)),
        // Teredo (RFC 4380): the client's address, every bit turned over.
        [0x2001, 0, _, _, _, _, high, low] => Some(join(!high, !low)),
        // NAT64 for local use (RFC 8215), at the place of a /96.
        [0x64, 0xff9b, 1, _, _, _, high, low] => Some(join(high, low)),
        // ISATAP (RFC 5214), in any network.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(join(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(address: &str) -> Class {
        classify(address.parse().unwrap())
    }

    #[test]
    fn the_edges_of_the_ranges() {
        let public = [
            "8.8.8.8",
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "93.184.216.34",
            "2606:4700:4700::1111",
            "2000::1",
            "2001:200::1",
            "3ffe::1",
            "64:ff9b::808:808",
            "::ffff:8.8.8.8",
            "2a00:1450:4001:0:0:5efe:808:808",
        ];
        for address in public {
            assert_eq!(class(address), Class::Public, "{address}");
        }
        use Restriction as R;
        let restricted = [
            ("0.0.0.0", R::Unspecified),
            ("0.255.255.255", R::Unspecified),
            ("10.0.0.0", R::Private),
            ("10.255.255.255", R::Private),
            ("100.64.0.0", R::Shared),
            ("100.127.255.255", R::Shared),
            ("127.0.0.0", R::Loopback),
            ("127.255.255.255", R::Loopback),
            ("169.254.0.0", R::LinkLocal),
            ("169.254.255.255", R::LinkLocal),
            ("169.254.169.254", R::Metadata),
            ("100.100.100.200", R::Metadata),
            ("168.63.129.16", R::Metadata),
            ("172.16.0.0", R::Private),
            ("172.31.255.255", R::Private),
            ("192.0.0.0", R::Reserved),
            ("192.0.0.255", R::Reserved),
            ("192.0.2.1", R::Documentation),
            ("192.88.99.1", R::Transition),
            ("192.168.0.0", R::Private),
            ("192.168.255.255", R::Private),
            ("198.18.0.0", R::Benchmarking),
            ("198.19.255.255", R::Benchmarking),
            ("198.51.100.7", R::Documentation),
            ("203.0.113.255", R::Documentation),
            ("224.0.0.0", R::Multicast),
            ("239.255.255.255", R::Multicast),
            ("240.0.0.0", R::Reserved),
            ("255.255.255.254", R::Reserved),
            ("255.255.255.255", R::Broadcast),
            ("::", R::Unspecified),
            ("::1", R::Loopback),
            ("::2", R::Unspecified),
            ("::127.0.0.1", R::Loopback),
            ("::8.8.8.8", R::Transition),
            ("::ffff:127.0.0.1", R::Loopback),
            ("::ffff:169.254.169.254", R::Metadata),
            ("::ffff:100.64.0.1", R::Shared),
            ("::ffff:0:7f00:1", R::Loopback),
            ("::ffff:0:808:808", R::Transition),
            ("64:ff9b::7f00:1", R::Loopback),
            ("64:ff9b::a9fe:a9fe", R::Metadata),
            ("64:ff9b::1:808:808", R::Reserved),
            ("64:ff9b:1::a00:1", R::Transition),
            ("64:ff9b:1:ffff:ffff:ffff:808:808", R::Transition),
            ("64:ff9b:1::a9fe:a9fe", R::Metadata),
            ("2002:7f00:1::", R::Transition),
            ("2002:808:808::", R::Transition),
            ("2002:a9fe:a9fe::1", R::Metadata),
            ("2001:0:4136:e378:8000:63bf:80ff:fffe", R::Transition),
            ("2001::5601:5601", R::Metadata),
            ("2001:2::1", R::Benchmarking),
            ("2001:2:1::1", R::Reserved),
            ("2001:1ff:ffff::1", R::Reserved),
            ("2001:db8:ffff::1", R::Documentation),
            ("3fff::1", R::Documentation),
            ("3fff:fff::1", R::Documentation),
            ("fe80::1", R::LinkLocal),
            ("febf:ffff::1", R::LinkLocal),
            ("fec0::1", R::Private),
            ("feff::1", R::Private),
            ("fc00::1", R::Private),
            ("fdff:ffff::1", R::Private),
            ("fd00:ec2::254", R::Metadata),
            ("ff02::1", R::Multicast),
            ("100::1", R::Reserved),
            ("5f00::1", R::Reserved),
            ("4000::1", R::Reserved),
            ("1fff::1", R::Reserved),
            ("2a00::5efe:7f00:1", R::Loopback),
            ("2a00::200:5efe:a00:1", R::Private),
        ];
        for (address, restriction) in restricted {
            assert_eq!(class(address), Class::Restricted(restriction), "{address}");
        }
    }
}
