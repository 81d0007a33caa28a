use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> FaultPlan {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn texts_are_printed_in_one_way() {
    for (text, printed) in [
        ("loss", "seed=1; loss"),
        (" seed=7 ;rnr = 3 : recv: every=100;", "seed=7; rnr=3:recv:every=100"),
        ("delay=100us..2ms:send:p=0.1", "seed=1; delay=100us..2ms:send:p=0.1"),
        ("delay=1000us", "seed=1; delay=1ms"),
        ("delay=0s:read:send", "seed=1; delay=0s:send:read"),
        ("access:write:read:atomic:nth=5", "seed=1; access:nth=5"),
        ("loss=all:qp=0x10:after=3:limit=2", "seed=1; loss=all:qp=16:after=3:limit=2"),
        ("port-down=200ms:at=1s", "seed=1; port-down=200ms:at=1s"),
        ("die:at=2s;die:nth=4", "seed=1; die:at=2s; die:nth=4"),
    ] {
        assert_eq!(parse(text).to_string(), printed);
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    for (text, at, why) in [
        ("", 0, "at least one rule"),
        ("seed=1", 0, "at least one rule"),
        ("seed=x;loss", 5, "whole number from 0"),
        ("seed=1;seed=2;loss", 7, "one seed"),
        ("loss;lose", 5, "the faults are delay, late, loss, rnr"),
        ("loss=0", 5, "attempts from 1, or `all`"),
        ("delay", 0, "such as delay=100us..2ms"),
        ("delay=5", 6, "100us, 20ms or 3s"),
        ("delay=2h", 6, "100us, 20ms or 3s"),
        ("delay=4000s", 6, "at most an hour"),
        ("delay=99999999999999999999s", 6, "at most an hour"),
        ("delay=1us..x", 11, "100us, 20ms or 3s"),
        ("delay=2us..1us", 6, "the longer time comes last"),
        ("delay=1us:recv", 0, "not for `recv`"),
        ("late", 0, "such as late=100us..2ms"),
        ("late=1us:datagram", 9, "late applies to send, write, read, atomic"),
        ("access=1", 7, "access has no value"),
        ("access: send", 8, "access applies to write, read, atomic"),
        ("flush:datagram", 6, "flush applies to send, write, read, atomic"),
        ("loss:often", 5, "no such option"),
        ("loss:often=2", 5, "no such option"),
        ("loss:p=0", 7, "above 0 and at most 1"),
        ("loss:p=1.5", 7, "above 0 and at most 1"),
        ("loss:p=nan", 7, "above 0 and at most 1"),
        ("loss:nth=0", 9, "whole number from 1"),
        ("loss:nth=1:p=1", 11, "one of nth, every, p and at"),
        ("loss:qp=16777216", 8, "24 bits"),
        ("loss:at=1s", 5, "`at` is for port-down, device-fatal and die"),
        ("port-down", 0, "such as port-down=200ms"),
        ("port-down=5", 10, "100us, 20ms or 3s"),
        ("die:at=1s:send", 10, "no other option"),
        ("loss:ä=1", 5, "no such option"),
    ] {
        let error = text.parse::<FaultPlan>().expect_err(text);
        assert_eq!(error.position(), at, "{text}: {error}");
        assert!(error.to_string().contains(why), "{text}: {error}");
    }
    assert!("loss;".repeat(65).parse::<FaultPlan>().is_err());
}

#[test]
fn the_help_names_every_fault_and_option() {
    for name in Fault::ALL.iter().map(|fault| fault.name()).chain(OPERATIONS.iter().map(|(name, _)| *name)) {
        assert!(HELP.contains(name), "{name}");
    }
    let example = HELP.lines().find(|line| line.contains("seed=7")).unwrap();
    assert_eq!(format!("  {}", parse(example)), example);
}

fn attempts() -> impl Strategy<Value = Attempts> {
    prop_oneof![(1..=u64::MAX).prop_map(Attempts::Some), Just(Attempts::All)]
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0..=MAX_TIME, 0..=MAX_TIME).prop_map(|(a, b)| Fault::Delay(a.min(b), a.max(b))),
        (0..=MAX_TIME, 0..=MAX_TIME).prop_map(|(a, b)| Fault::Late(a.min(b), a.max(b))),
        attempts().prop_map(Fault::Loss),
        attempts().prop_map(Fault::Rnr),
        (0..=MAX_TIME).prop_map(Fault::PortDown),
        (4..Fault::ALL.len() - 1).prop_map(|index| Fault::ALL[index]),
    ]
}

fn picks() -> impl Strategy<Value = Pick> {
    prop_oneof![
        Just(Pick::Each),
        (1..=u64::MAX).prop_map(Pick::Nth),
        (1..=u64::MAX).prop_map(Pick::Every),
        (f64::MIN_POSITIVE..=1.0).prop_map(Pick::Chance),
    ]
}

fn rules() -> impl Strategy<Value = Rule> {
    let options = (any::<bool>(), 0_u8..32, proptest::option::of(1_u32..1 << 24));
    let counts = (any::<u64>(), picks(), proptest::option::of(1..=u64::MAX));
    let rule = (faults(), options, counts).prop_map(|(fault, (inbound, bits, qpn), (after, pick, limit))| {
        let inbound = inbound && !fault.operations(true).is_empty();
        let possible = fault.operations(inbound);
        let named = Operations::from_bits_truncate(bits) & possible;
        let operations = if named.is_empty() { possible } else { named };
        Rule { fault, inbound, operations, qpn, after, pick, limit }
    });
    let at = (0..=MAX_TIME).prop_map(|time| Rule {
        fault: Fault::Die,
        inbound: false,
        operations: Operations::all(),
        qpn: None,
        after: 0,
        pick: Pick::At(time),
        limit: None,
    });
    prop_oneof![9 => rule, 1 => at]
}

proptest! {
    #[test]
    fn every_plan_is_parsed_from_its_text(seed: u64, rules in proptest::collection::vec(rules(), 1..5)) {
        let plan = FaultPlan { seed, rules };
        prop_assert_eq!(parse(&plan.to_string()), plan);
    }

    #[test]
    fn any_text_is_a_plan_or_an_error_in_bounds(text in "([a-z=:;.0-9 ä]|loss|delay=|:p=|seed=){0,12}") {
        if let Err(error) = text.parse::<FaultPlan>() {
            prop_assert!(error.position() <= text.len(), "{}", error);
        }
    }
}
