"""The view layer in a browser: it touches only what changed, and never turns a value into markup."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect


def run(page: Page, body: str) -> Any:
    """Run a script with the view layer's names and an empty element."""
    return page.evaluate(
        """async (body) => {
            const module = document.querySelector('link[href$="/view.js"]').href;
            const view = await import(module);
            const box = document.body.appendChild(document.createElement("div"));
            return new (async () => {}).constructor("view", "box", body)(view, box);
        }""",
        body,
    )


def opened(watched) -> Page:
    watched.expected = ["unsafe-eval"]
    page = watched.browser.new_context(bypass_csp=True).new_page()
    page.goto(watched.url + "/settings")
    expect(page.locator(".settings")).to_be_visible()
    return page


def test_rows_keep_their_elements(watched):
    """A keyed list moves the elements of its rows, drops those that are gone, and adds the new ones in their places."""
    page = opened(watched)
    body = """
        const { html, each, render } = view;
        const list = (keys) => render(html`<ul>${each(keys, (k) => k, (k) => html`<li>${k}</li>`)}</ul>`, box);
        list(["a", "b", "c", "d"]);
        const before = new Map([...box.querySelectorAll("li")].map((li) => [li.textContent, li]));
        list(["d", "x", "b", "a"]);
        const after = [...box.querySelectorAll("li")];
        const kept = after.filter((li) => before.get(li.textContent) === li).map((li) => li.textContent);
        return [after.map((li) => li.textContent), kept];
    """
    assert run(page, body) == [["d", "x", "b", "a"], ["d", "b", "a"]]


def test_values_are_text_and_attributes_never_markup(watched):
    """A value with markup is text; a null attribute is removed; the same template keeps its elements."""
    page = opened(watched)
    body = """
        const { html, render } = view;
        const draw = (text, title, on) =>
            render(html`<p title=${title} class="a ${text}" hidden=${on}>${text}</p>`, box);
        draw("<b>x</b>", "t", false);
        const first = box.querySelector("p");
        const texts = [first.textContent, first.className, first.title, first.hidden];
        draw("y", null, true);
        const p = box.querySelector("p");
        return [texts, p === first, p.hasAttribute("title"), p.hidden, p.textContent, box.querySelectorAll("b").length];
    """
    assert run(page, body) == [["<b>x</b>", "a <b>x</b>", "t", False], True, False, True, "y", 0]


def test_places_change_between_text_lists_and_templates(watched):
    """A place can hold nothing, text, a template or a list, one after the other."""
    page = opened(watched)
    body = """
        const { html, render } = view;
        const seen = [];
        const values = ["text", html`<i>i</i>`, [1, html`<b>b</b>`, null], null, 0, false, html`${[2]}${"t"}`, ""];
        for (const value of values) {
            render(html`<p>[${value}]</p>`, box);
            seen.push(box.querySelector("p").innerHTML.replace(/<!--.*?-->/g, ""));
        }
        return seen;
    """
    assert run(page, body) == ["[text]", "[<i>i</i>]", "[1<b>b</b>]", "[]", "[0]", "[]", "[2t]", "[]"]


def test_drawings_are_svg(watched):
    """What stands in a drawing belongs to SVG, and a listener is the newest one."""
    page = opened(watched)
    body = """
        const { html, svg, render } = view;
        let last = 0;
        const draw = (n) => render(html`<svg>${svg`<rect x=${n} @click=${() => (last = n)}/>`}</svg>`, box);
        draw(1);
        draw(2);
        const rect = box.querySelector("rect");
        rect.dispatchEvent(new Event("click"));
        return [rect.namespaceURI, rect.getAttribute("x"), last];
    """
    assert run(page, body) == ["http://www.w3.org/2000/svg", "2", 2]
